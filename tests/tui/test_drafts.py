"""Drafts: text that was not sent comes back, however the dashboard ended."""

import gc
import sys
from pathlib import Path

import pytest

from crewboard.commands import answers
from crewboard.readmodel.reader import TeamReader
from crewboard.records.requests import Request
from crewboard.store.operators import OpenDashboard, file_for
from crewboard_tui import dashboard
from crewboard_tui.app import CrewboardApp
from crewboard_tui.drafts import (
    HIRE,
    SENT_KEPT,
    Drafts,
    LineNote,
    SentTexts,
    called,
    can_be_sent,
    edit_of_task,
    for_merge,
    interrupting,
    notes_on,
    terms_for,
)
from crewboard_tui.settings import Settings
from tests.frozen import NOW, Frozen, make_empty
from tests.tui.stage import opened
from tests.tui.test_requests import _open_plan as open_plan

API = ("j",) * 5


async def test_what_was_written_comes_back_in_the_next_dashboard(frozen: Frozen, tmp_path: Path) -> None:
    settings = Settings(drafts=tmp_path / "drafts")
    async with opened(frozen, 80, 24, settings=settings) as stage:
        await stage.press(*API, "m")
        await stage.write("how far?")
        await stage.until(lambda: "how far?" in _written(tmp_path), "all of it on the disk")
    async with opened(frozen, 80, 24, settings=settings) as stage:
        await stage.sees("not sent yet, from the last time: to api")
        await stage.press(*API, "m")
        await stage.sees("how far?")
        await stage.press("enter")
        await stage.sees("sent to api")
        assert dashboard.unsent(stage.app.context.drafts) == []
    async with opened(frozen, 80, 24, settings=settings) as stage:
        assert "not sent yet" not in stage.all


@pytest.mark.long
async def test_a_prompt_and_a_reason_are_kept_while_they_are_written(frozen: Frozen, tmp_path: Path) -> None:
    settings = Settings(drafts=tmp_path / "drafts")
    async with opened(frozen, 80, 24, settings=settings) as stage:
        await stage.press("n", "tab", "tab", "tab")
        await stage.write("Fix the parser")
        await stage.until(lambda: "Fix the parser" in _written(tmp_path), "the prompt on the disk")
    async with opened(frozen, 80, 24, settings=settings) as stage:
        await stage.press("n")
        await stage.sees("Fix the parser")
        await stage.press("escape")
        await open_plan(stage)
        await stage.press("d")
        await stage.write("not the alias")
        await stage.until(lambda: "not the alias" in _written(tmp_path), "the reason on the disk")


def _written(folder: Path) -> str:
    return "".join(file.read_text() for file in folder.glob("drafts/*.json"))


async def test_who_only_looks_keeps_nothing(frozen: Frozen, tmp_path: Path) -> None:
    async with opened(frozen, 80, 24, settings=Settings(drafts=tmp_path / "drafts"), read_only=True) as stage:
        stage.app.context.drafts["api"] = "how far?"
        stage.app._tick()
    assert not (tmp_path / "drafts").exists()


def test_two_dashboards_keep_what_each_of_them_changed(tmp_path: Path) -> None:
    file = tmp_path / "drafts" / "demo.json"
    one, other = Drafts(file), Drafts(file)
    one["api"] = "how far?"
    one.keep()
    other["ui"] = "send a picture"
    other.keep()
    assert Drafts(file) == {"api": "how far?", "ui": "send a picture"}
    del one["api"]
    one.keep()
    assert Drafts(file) == {"ui": "send a picture"}


def test_what_one_dashboard_sent_the_other_no_longer_offers(tmp_path: Path) -> None:
    file = tmp_path / "drafts" / "demo.json"
    one, other = Drafts(file), Drafts(file)
    one.update(api="how far?", ui="use sk-ant-api03-abcdefghijklmnop")
    one.keep()
    assert other.take_over()
    assert other == {"api": "how far?"}
    other["docs"] = "half a"
    del one["api"]
    one.keep()
    assert other.take_over()
    assert other == {"docs": "half a"}, "what is being written here stays"
    other.keep()
    assert one.take_over()
    assert one == {"docs": "half a", "ui": "use sk-ant-api03-abcdefghijklmnop"}, "what no file holds stays"
    assert not one.take_over()


async def test_a_deleted_team_takes_no_words_that_are_being_written(frozen: Frozen, tmp_path: Path) -> None:
    settings = Settings(drafts=tmp_path / "drafts")
    async with opened(frozen, 80, 24, settings=settings) as stage:
        await stage.press(*API, "m")
        await stage.write("how far?")
        await stage.until(lambda: "how far?" in _written(tmp_path), "all of it on the disk")
        frozen.directory.purge()
        (file,) = (tmp_path / "drafts").glob("*.json")
        file.unlink()
        await stage.sees("was deleted")
        await stage.write(" and how long?")
        await stage.sees("how far? and how long?")
        drafts = stage.app.context.drafts
        assert dashboard.unsent(drafts) == ["Not sent (to api): how far? and how long?"]
        assert not file.exists()


def test_a_text_that_a_closed_dashboard_left_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "drafts" / "demo.json"
    one, other = Drafts(file, "one", ["other"]), Drafts(file, "other", ["one"])
    aside: list[str] = []
    other.put_aside = aside.append
    one["api"] = "how far?"
    one.keep()
    other["api"] = "send a picture"
    other.keep()
    other.others = frozenset()
    other.keep()
    assert (Drafts(file), aside) == ({"api": "send a picture"}, ["how far?"])
    other["api"] = "send a picture of it"
    other.keep()
    assert aside == ["how far?"]


def test_terms_that_a_closed_dashboard_left_are_no_text_to_keep(tmp_path: Path) -> None:
    file, name = (
        tmp_path / "drafts" / "demo.json",
        terms_for(Request(id="p", type="plan_approval", from_="a", to="lead")),
    )
    one, other = Drafts(file, "one"), Drafts(file, "other", ["one"])
    aside: list[str] = []
    other.put_aside = aside.append
    one[name] = "1: ask"
    one.keep()
    other.others = frozenset()
    other[name] = "1: hold"
    other.keep()
    assert (Drafts(file), aside) == ({name: "1: hold"}, [])


def test_a_draft_belongs_to_the_open_dashboard_that_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "drafts" / "demo.json"
    one, other = Drafts(file, "one", ["other"]), Drafts(file, "other", ["one"])
    one[HIRE] = "Fix the parser"
    one.keep()
    assert not other.take_over()
    assert other.claim(HIRE) == "", "what is being written elsewhere is not offered"
    other[HIRE] = "Write the docs"
    other.keep()
    assert Drafts(file) == {HIRE: "Fix the parser"}
    assert not other.safe, "leaving says that it is not kept"
    del one[HIRE]
    one.keep()
    other.keep()
    assert (one, other) == ({}, {HIRE: "Write the docs"})
    assert not one.take_over()
    one.others = frozenset()
    assert one.take_over()
    assert one == {HIRE: "Write the docs"}, "the other one was closed"


def test_a_draft_that_two_dashboards_know_is_taken_by_the_first(tmp_path: Path) -> None:
    file = tmp_path / "drafts" / "demo.json"
    before = Drafts(file)
    before[HIRE] = "Fix the parser"
    before.keep()
    one, other = Drafts(file, "one", ["other"]), Drafts(file, "other", ["one"])
    assert one.claim(HIRE) == "Fix the parser"
    assert other.claim(HIRE) == ""


@pytest.mark.long
async def test_a_prompt_that_another_dashboard_writes_is_not_offered(frozen: Frozen, tmp_path: Path) -> None:
    settings = Settings(drafts=tmp_path / "drafts")
    other = OpenDashboard(frozen.directory, frozen.team.operator, NOW)
    other.look_at(None)
    drafts = Drafts(file_for(tmp_path / "drafts", frozen.directory.path), other.id)
    drafts[HIRE] = "Fix the parser"
    drafts.keep()
    async with opened(frozen, 80, 24, settings=settings) as stage:
        await stage.press("n")
        await stage.sees("Hire an agent")
        await stage.settles()
        assert "Fix the parser" not in stage.all
        assert "from the last time" not in stage.all
        await stage.press("escape")
        other.close()
        await stage.until(lambda: HIRE in stage.app.context.drafts, "the prompt of the dashboard that was closed")
        await stage.press("n")
        await stage.sees("Fix the parser")


def test_drafts_are_for_their_writers_eyes(tmp_path: Path) -> None:
    file = tmp_path / "drafts" / "demo.json"
    drafts = Drafts(file)
    drafts["api"] = "how far?"
    drafts.keep()
    assert file.stat().st_mode & 0o077 == 0
    assert file.parent.stat().st_mode & 0o077 == 0


def test_a_draft_with_a_key_in_it_is_not_written_down(tmp_path: Path) -> None:
    file = tmp_path / "drafts" / "demo.json"
    drafts = Drafts(file)
    drafts.update(api="use sk-ant-api03-abcdefghijklmnop", ui="go on")
    assert dashboard.unsent(drafts) == [
        "Not sent (to api): use [key hidden: 29 characters]",
        "Not sent, but kept (to ui): go on",
    ]
    assert "sk-ant" not in file.read_text()


def test_of_a_long_draft_that_is_kept_one_line_is_said(tmp_path: Path) -> None:
    kept, lost = Drafts(tmp_path / "demo.json"), Drafts()
    kept["api"] = lost["api"] = "# Plan\n\n" + "say how\n" * 40
    assert dashboard.unsent(kept) == [f"Not sent, but kept (to api): # Plan {'say how ' * 6}say h…"]
    assert dashboard.unsent(lost) == [f"Not sent (to api): {lost['api']}"], "it is nowhere else"


def test_damaged_drafts_are_kept_aside_and_new_ones_written(tmp_path: Path) -> None:
    file = tmp_path / "demo.json"
    file.write_text('{"texts": {"api": "how')
    drafts = Drafts(file)
    assert drafts == {}
    drafts["ui"] = "go on"
    drafts.keep()
    assert Drafts(file) == {"ui": "go on"}
    assert len(list(tmp_path.glob("demo.json.damaged-*"))) == 1


def _leave(app: CrewboardApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a dashboard end as soon as it is run, and say what was not sent."""
    monkeypatch.setattr(CrewboardApp, "run", lambda _: None)
    monkeypatch.setattr("crewboard_tui.app.CrewboardApp", lambda *_, **__: app)
    monkeypatch.setattr(gc, "disable", lambda: None)
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    dashboard.run(app.context.team, read_only=True)


def test_a_draft_of_another_team_is_named_with_its_team(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = CrewboardApp(frozen.team, probe=frozen.probe)
    app.context.drafts["api"] = "how far?"
    app.drafts[make_empty(frozen.directory.root, "webshop").directory.path] = Drafts()
    app.drafts[frozen.directory.path.with_name("webshop")]["cashier"] = "round up"
    _leave(app, monkeypatch)
    out = capsys.readouterr().out
    assert "Not sent (to api): how far?\n" in out
    assert "Not sent (to cashier, team webshop): round up\n" in out


def test_words_for_a_request_that_was_decided_are_said_once(
    frozen: Frozen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = file_for(tmp_path / "drafts", frozen.directory.path)
    drafts = Drafts(file)
    drafts.update({"req-004281 no": "too risky", "req-004290": "keep them", "api": "how far?"})
    drafts.keep()
    answers.approve(frozen.team, "req-004281")
    app = CrewboardApp(frozen.team, probe=frozen.probe, settings=Settings(drafts=tmp_path / "drafts"))
    _leave(app, monkeypatch)
    assert "Not sent (your refusal of auth-plan's plan): too risky\n" in capsys.readouterr().out
    assert Drafts(file) == {"req-004290": "keep them", "api": "how far?"}


def test_words_for_a_request_that_is_gone_are_not_announced(frozen: Frozen) -> None:
    answers.approve(frozen.team, "req-004281")
    view = TeamReader(frozen.directory, clock=frozen.team.now, probe=frozen.probe).read()
    about = ("req-004281 no", "plan-77", "plan-77 no", "plan-77 lines 1-2", "req-004290", "api", "api gone", "new task")
    names = {agent.name for agent in view.agents}
    assert [each for each in about if can_be_sent(each, view.asked, names)] == ["req-004290", "api", "new task"]
    for all_of, one in ((("api", "ui"), "api"), (("api", "gone"), "gone")):
        kinds = interrupting(all_of), for_merge(one), LineNote(one, "a.py", "+", 1, "x").draft
        assert [can_be_sent(each, view.asked, names) for each in kinds] == [one in names] * 3
    assert all(can_be_sent(each, view.asked, names) for each in (HIRE, edit_of_task(3)))
    assert called("plan-77 no", view.asked) == "about plan-77, which is gone"
    assert called("api ui", view.asked) == "to api, ui"


@pytest.mark.long
async def test_what_was_kept_is_named_as_a_person_calls_it(frozen: Frozen, tmp_path: Path) -> None:
    settings = Settings(drafts=tmp_path / "drafts")
    async with opened(frozen, 80, 24, settings=settings) as stage:
        await stage.press(
            *API, "m", "x", "escape", "i", "x", "escape", "l", "x", "escape", "escape", "b", "x", "escape"
        )
        await stage.press("3", "A", "x", "escape", "1", "n", "tab", "tab", "tab", "x", "escape")
        await stage.sees("not hired; n shows the prompt again")
        await stage.app.open_need("plan:auth-plan:req-004281")
        await stage.sees("PLAN v2")
        await stage.until(lambda: stage.app.screen.settled, "the keys to live")  # type: ignore[attr-defined]
        await stage.press("e", "x", "escape", "d", "x", "escape", "escape")
        await stage.app.open_need("question:docs:req-004290")
        await stage.sees("QUESTION")
        await stage.press("c", "x")
        stage.app._tick()
    called = (
        "to api", "interrupt api", "to the lead", "to all agents", "a new task", "your prompt for a hire",
        "your edit of auth-plan's plan", "your refusal of auth-plan's plan", "your answer to docs's question",
    )  # fmt: skip
    async with opened(frozen, 120, 24, settings=settings) as stage:
        said = stage.app.context.said
        assert said is not None
        assert sorted(said.text.partition(": ")[2].split(", ")) == sorted(called)


def test_a_disk_that_refuses_is_not_said_to_keep(tmp_path: Path) -> None:
    (tmp_path / "drafts").write_text("a file where a folder should be")
    drafts = Drafts(tmp_path / "drafts" / "demo.json")
    drafts["api"] = "how far?"
    assert dashboard.unsent(drafts) == ["Not sent (to api): how far?"]


def test_what_a_disk_refused_is_kept_once_it_can_be(tmp_path: Path) -> None:
    (tmp_path / "drafts").write_text("a file where a folder should be")
    drafts = Drafts(tmp_path / "drafts" / "demo.json")
    drafts["api"] = "how far?"
    drafts.keep()
    (tmp_path / "drafts").unlink()
    assert dashboard.unsent(drafts) == ["Not sent, but kept (to api): how far?"]
    assert Drafts(tmp_path / "drafts" / "demo.json") == {"api": "how far?"}


@pytest.mark.long
async def test_the_texts_sent_last_are_there_in_the_next_dashboard(frozen: Frozen, tmp_path: Path) -> None:
    settings = Settings(sent=tmp_path / "sent")
    async with opened(frozen, 80, 24, settings=settings) as stage:
        await stage.press(*API, "m")
        await stage.write("how far?")
        await stage.press("enter")
        await stage.sees("sent to api")
    async with opened(frozen, 80, 24, settings=settings) as stage:
        await stage.press(*API, "m", "up")
        await stage.sees("how far?")
    (file,) = (tmp_path / "sent").glob("*.json")
    assert file.stat().st_mode & 0o077 == 0
    assert file.parent.stat().st_mode & 0o077 == 0


def test_the_texts_sent_last_are_bounded(tmp_path: Path) -> None:
    sent = SentTexts(tmp_path / "sent.json")
    for text in ("x" * 100_000, *(f"text {number}" for number in range(SENT_KEPT + 5)), "text 50"):
        sent.add(text)
    assert len(sent.texts) == SENT_KEPT
    assert sent.texts[-1] == "text 50"
    assert SentTexts(tmp_path / "sent.json").texts == sent.texts


def test_a_sent_text_with_a_key_in_it_is_not_written_down(tmp_path: Path) -> None:
    sent = SentTexts(tmp_path / "sent.json")
    sent.add("use sk-ant-api03-abcdefghijklmnop")
    assert sent.texts
    assert SentTexts(tmp_path / "sent.json").texts == []


def test_notes_are_in_the_order_of_their_lines() -> None:
    notes = [LineNote("ann", "a.py", sign, number, "text") for sign, number in ((" ", 7), ("-", 52), ("+", 53))]
    assert [*notes_on("ann", {note.draft: "why?" for note in reversed(notes)})] == notes
