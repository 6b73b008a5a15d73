"""A Claude Code team on the board: what its files say is what the views say, once, and nothing of it is changed."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crewboard import OPERATOR, BadDataError, StorageError, Team, TeamView, operations, read_team
from crewboard.attach import formats, mirror, places, teams
from crewboard.attach.letters import Journals
from crewboard.commands import answers, control, hire, messages, settings, stop, tasks
from crewboard.protocol import requests
from crewboard.readmodel.mail import MailReader, describe_message
from crewboard.records.base import JsonValue
from crewboard.records.events import Reply, Sent, ToolStart
from crewboard.store import journal as store_journal
from crewboard.store import mailbox
from crewboard.store.layout import TeamDirectory
from crewboard.unix import process as unix_process
from tests.attach.replay import TIMELINES, Change, Replay, contents, process
from tests.crew import eventually
from tests.matrix import default


@pytest.fixture
def lead() -> Iterator[subprocess.Popen[bytes]]:
    with process() as started:
        yield started


@pytest.fixture
def replay(tmp_path: Path, lead: subprocess.Popen[bytes]) -> Replay:
    return Replay(tmp_path / "claude", lead.pid)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def mirrored(team: TeamDirectory) -> mirror.Mirror:
    found = mirror.Mirror(team)
    assert found.refresh()
    return found


def marks_of(team: TeamDirectory, name: str) -> list[object]:
    return [message.metadata.get("letter_id") for message in mailbox.read(team, name).messages]


@pytest.mark.parametrize("timeline", default(TIMELINES, "board", "letters", TIMELINES[-1]))
@pytest.mark.parametrize("restarts", [False, True])
def test_every_letter_is_mirrored_once(replay: Replay, root: Path, timeline: str, restarts: bool) -> None:
    team = here = None
    for change in replay.play(timeline):
        if team is None and teams.find_teams(replay.config):
            team = replay.attach(root)
        if team is not None:
            if here is not None and restarts:
                here.close()
                here = None
            here = here or mirror.Mirror(team)
            assert here.refresh(), change.path
    assert team is not None
    for name, marks in replay.letters.items():
        assert sorted(marks) == sorted(str(mark) for mark in marks_of(team, name))


def test_board_and_members_agree_with_the_files_at_the_end(replay: Replay, root: Path) -> None:
    team, here = None, None
    seen: list[tuple[str, ...]] = []
    for _ in replay.play("board"):
        team = team or (replay.attach(root) if teams.find_teams(replay.config) else None)
        here = here or (mirror.Mirror(team) if team else None)
        if here is not None and team is not None:
            here.refresh()
            view = read_team(team)
            seen.append((*(f"{a.name} {a.state}" for a in view.agents), *(f"{t.id} {t.status}" for t in view.tasks)))
    assert team is not None
    view = read_team(team)
    assert [(a.name, a.type, a.state, a.exit and a.exit.reason) for a in view.agents if a.name == "alpha"] == [
        ("alpha", "general-purpose", "exited", "shutdown")
    ]
    assert [(t.id, t.subject, t.status, t.owner, t.blocked_by) for t in view.tasks] == [
        (1, "Read a.txt", "completed", "alpha", []),
        (2, "Summarise", "pending", None, [1]),
    ]
    assert any("1 in_progress" in each for each in seen)
    assert any("alpha working" in each for each in seen)
    assert any("alpha idle" in each for each in seen)
    assert not view.needs


def test_a_permission_prompt_needs_the_user_while_it_is_open(replay: Replay, root: Path) -> None:
    team, here, waiting = None, None, 0
    for change in replay.play("permission"):
        team = team or (replay.attach(root) if teams.find_teams(replay.config) else None)
        here = here or (mirror.Mirror(team) if team else None)
        if here is None or team is None:
            continue
        here.refresh()
        view = read_team(team)
        waits = isinstance(change.content, dict) and change.content.get("status") == "waiting"
        if waits or "status" in (change.content if isinstance(change.content, dict) else ()):
            assert bool([need for need in view.needs if need.kind == "permission"]) == waits
        if waits:
            waiting += 1
            (request,) = view.requests
            with pytest.raises(BadDataError, match="terminal only"):
                answers.approve(Team(team), request.id)
    assert waiting


def test_a_permission_of_a_pane_teammate_is_closed_with_its_answer(replay: Replay, root: Path) -> None:
    team, here = None, None
    needed: list[str] = []
    for _ in replay.play("tmux"):
        team = team or (replay.attach(root) if teams.find_teams(replay.config) else None)
        here = here or (mirror.Mirror(team) if team else None)
        if here is not None and team is not None:
            here.refresh()
            needed += [need.summary for need in read_team(team).needs if need.kind == "permission"]
    assert team is not None
    assert needed
    assert set(needed) == {"wants to run Write: /home/u/project/b.txt made by alpha"}
    assert [(r.type, r.status) for r in read_team(team).asked if r.from_ == "alpha"] == [("permission", "approved")]


@pytest.mark.parametrize("approved_here", [True, False])
def test_the_yes_of_a_lead_says_if_you_approved_the_plan_before(
    replay: Replay, root: Path, approved_here: bool
) -> None:
    team, here = None, None
    for change in replay.play("plan"):
        if team is None and teams.find_teams(replay.config):
            team = replay.attach(root)
            here = mirror.Mirror(team)
        asked = _first_letter(change, "team-lead")
        if approved_here and team is not None and asked is not None and asked["type"] == "plan_approval_request":
            plan: dict[str, JsonValue] = {"plan": asked["planContent"]}
            requests.ask(team, "plan-1", "plan_approval", "alpha", "operator", plan, 1.0)
            answers.approve(Team(team), "plan-1")
        if here is not None:
            here.refresh()
    assert team is not None
    said = [describe_message(m) for m in mailbox.read(team, "alpha").messages if m.type == "plan_approval_response"]
    words = [each for each in said if each.startswith("approves the plan")]
    assert ("approves the plan: you approved it before" in words) == approved_here
    assert ("approves the plan" in words) or approved_here


def _first_letter(change: Change, to: str) -> dict[str, Any] | None:
    if not (change.path.endswith(f"inboxes/{to}.json") and isinstance(change.content, list) and change.content):
        return None
    return formats.frame(change.content[0]["text"])


@pytest.mark.parametrize(("timeline", "author"), [("plan", "alpha"), ("version_2_1_177", "beta")])
def test_a_plan_that_the_lead_approved_is_no_need(replay: Replay, root: Path, timeline: str, author: str) -> None:
    team, here = None, None
    for _ in replay.play(timeline):
        team = team or (replay.attach(root) if teams.find_teams(replay.config) else None)
        here = here or (mirror.Mirror(team) if team else None)
        if here is not None and team is not None:
            here.refresh()
            assert not [need for need in read_team(team).needs if need.kind == "plan"]
    assert team is not None
    plans = [request for request in read_team(team).asked if request.type == "plan_approval"]
    assert [(plan.from_, plan.status, plan.decided_by) for plan in plans] == [(author, "approved", "team-lead")]
    assert plans[0].payload["plan"]


@pytest.mark.parametrize("recording", ["in_process", "panes"])
def test_conversation_cost_and_mail_come_from_the_transcripts(replay: Replay, root: Path, recording: str) -> None:
    replay.copy(recording)
    team = replay.attach(root)
    mirrored(team)
    view = read_team(team)
    assert [(a.name, a.type, a.role) for a in view.agents[:2]] == [
        ("team-lead", "lead", ""), ("alpha", "general-purpose", ""),
    ]  # fmt: skip
    sub = view.agents[2]
    assert (sub.type, sub.role, sub.state) == ("Explore", "look around", "exited")
    calls: dict[str, dict[str, int]] = {}
    for path in replay.config.rglob("projects/**/*.jsonl"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if record["type"] == "assistant":
                calls[record["message"]["id"]] = record["message"]["usage"]
    assert sum(a.status.tokens.input for a in view.agents) == sum(used["input_tokens"] for used in calls.values())
    assert sum(a.status.tokens.output for a in view.agents) == sum(used["output_tokens"] for used in calls.values())
    assert all((a.status.cost_usd or 0) > 0 for a in view.agents)
    letters = MailReader(team, "alpha").read()
    assert {(each.message.from_, each.message.content) for each in letters} == {
        ("team-lead", "#script:alpha# Read a.txt & <report> to the lead."),
        ("team-lead", 'use <care> & "quotes"'),
    }
    assert len(letters) == 2
    assert all(each.entered_turn_at for each in letters)
    assert [agent.unread for agent in view.agents] == [0, 0, 0]


def test_a_letter_has_its_three_times(replay: Replay, root: Path) -> None:
    replay.copy("in_process")
    team = replay.attach(root)
    here = mirrored(team)
    inbox = replay.config / "teams/session-390111e4/inboxes/alpha.json"
    letter = {"from": "team-lead", "text": "one more", "timestamp": "2026-11-23T00:10:00.000Z", "msg_id": "m1"}
    inbox.write_text(json.dumps([letter]))
    here.refresh()
    last = MailReader(team, "alpha").read()[-1]
    assert (last.message.content, last.picked_up_at, last.entered_turn_at) == ("one more", None, None)
    assert read_team(team).unread["alpha"] == 1
    inbox.write_text("[]")
    here.refresh()
    last = MailReader(team, "alpha").read()[-1]
    assert last.picked_up_at is not None
    assert last.entered_turn_at is None
    assert read_team(team).unread["alpha"] == 0
    append_letter(replay, "one more")
    here.refresh()
    assert MailReader(team, "alpha").read()[-1].entered_turn_at is not None


def append_letter(replay: Replay, text: str) -> None:
    append_record(replay, f'<teammate-message teammate_id="team-lead">\n{text}\n</teammate-message>')


def append_record(replay: Replay, content: object) -> None:
    (transcript,) = replay.config.rglob("agent-aalpha-*.jsonl")
    record = {
        "type": "user", "uuid": f"u-{content}", "timestamp": "2026-11-23T00:10:01.000Z",
        "message": {"role": "user", "content": content},
    }  # fmt: skip
    with transcript.open("a") as file:
        file.write(json.dumps(record, separators=(",", ":")) + "\n")


def test_a_killed_mirror_imports_nothing_twice(replay: Replay, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replay.copy("in_process")
    team = replay.attach(root)
    with monkeypatch.context() as patch:
        patch.setattr(mirror.Mirror, "_save", lambda self: None)
        first = mirrored(team)
        first.close()
    before = {path.parent.name: path.read_bytes() for path in team.agents.glob("*/journal.jsonl")}
    tokens = [agent.status.tokens for agent in read_team(team).agents]
    second = mirrored(team)
    second.refresh()
    assert {path.parent.name: path.read_bytes() for path in team.agents.glob("*/journal.jsonl")} == before
    assert [agent.status.tokens for agent in read_team(team).agents] == tokens
    assert len(marks_of(team, "alpha")) == 2


def test_a_mirror_that_began_anew_imports_nothing_twice(
    replay: Replay, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay.copy("in_process")
    team = replay.attach(root)
    mirrored(team).close()
    before = {path.parent.name: path.read_bytes() for path in team.agents.glob("*/journal.jsonl")}
    second = mirror.Mirror(team)

    def fail(*_: object) -> None:
        raise StorageError("the disk does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Journals, "load", fail)
        with pytest.raises(StorageError):
            second.refresh()
    assert second.refresh()
    assert {path.parent.name: path.read_bytes() for path in team.agents.glob("*/journal.jsonl")} == before


def test_a_new_agent_needs_nothing_while_it_is_mirrored(
    replay: Replay, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on the roster before its spec is written: in between, its transcript is read, which may be long."""
    replay.copy("in_process")
    team = replay.attach(root)
    seen: list[TeamView] = []
    read = mirror.Mirror._read_transcripts

    def look_and_read(self: mirror.Mirror) -> None:
        seen.append(read_team(team))
        read(self)

    monkeypatch.setattr(mirror.Mirror, "_read_transcripts", look_and_read)
    mirrored(team)
    (view,) = seen
    assert "alpha" in view.names
    assert not [need for need in view.needs if need.kind == "damaged"]
    assert view.damage == {}


def test_a_restart_appends_nothing(replay: Replay, root: Path) -> None:
    replay.copy("panes")
    team = replay.attach(root)
    mirrored(team).close()
    before = contents(team.path)
    mirrored(team).close()
    after = contents(team.path)
    assert {path: data for path, (data, _) in after.items()} == {path: data for path, (data, _) in before.items()}


@pytest.mark.parametrize("recording", ["in_process", "panes"])
def test_nothing_is_written_below_the_other_program(replay: Replay, root: Path, recording: str) -> None:
    replay.copy(recording)
    before = contents(replay.config)
    team = replay.attach(root)
    here = mirrored(team)
    here.refresh()
    assert contents(replay.config) == before
    assert team.path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("timeline", default(TIMELINES, "letters", TIMELINES[-1]))
def test_torn_and_missing_files_are_read_again_later(replay: Replay, root: Path, timeline: str) -> None:
    team = here = None
    for change in replay.play(timeline):
        if team is None and teams.find_teams(replay.config):
            team = replay.attach(root)
            here = mirror.Mirror(team)
        target = replay.config / change.path
        if here is None or change.content is None:
            continue
        whole = target.read_text()
        for damaged in (whole[: len(whole) // 2], "", "[1, 2", '{"members": 7}', "\x00", None):
            if damaged is None:
                target.unlink()
            else:
                target.write_text(damaged)
            here.refresh()
        target.write_text(whole)
        here.refresh()
    assert team is not None
    for name, marks in replay.letters.items():
        assert sorted(marks) == sorted(str(mark) for mark in marks_of(team, name))


def test_an_unknown_frame_is_one_plain_line(replay: Replay, root: Path) -> None:
    replay.copy("in_process")
    team = replay.attach(root)
    here = mirrored(team)
    text = json.dumps({"type": "Moon_Phase", "phase": "full\nmoon", "deep": [[[1]]]})
    odd = [{"from": "who is this?", "text": text, "timestamp": 17, "msg_id": 5}, {"nonsense": 1}, "x", None]
    (replay.config / "teams/session-390111e4/inboxes/alpha.json").write_text(json.dumps(odd))
    here.refresh()
    last = mailbox.read(team, "alpha").messages[-1]
    assert (last.from_, last.type) == ("who-is-this", "message")
    assert last.content.startswith("Moon_Phase: ")
    assert "\n" not in last.content


def test_unknown_records_of_a_transcript_do_no_harm(replay: Replay, root: Path) -> None:
    replay.copy("in_process")
    (transcript,) = replay.config.rglob("agent-aalpha-*.jsonl")
    odd = [
        '{"type":"assistant"', '{"type":"assistant","message":7}',
        '{"type":"user","message":{"content":[7,{"type":"x"}]}}',
        '{"type":"assistant","message":{"content":[{"type":"tool_use"}],"usage":{"input_tokens":"many"}}}',
        '{"type":"user","message":{"content":[{"type":"tool_result","content":[{"type":"image"}]}]},"timestamp":"never"}',
        '{"type":"assistant","message":{"content":[{"type":"tool_use","id":"t","name":"N","input":{"x":NaN}}]}}',
        '{"type":"hologram","message":{"type":"user"}}', "\udc80", "",
    ]  # fmt: skip
    with transcript.open("a", encoding="utf-8", errors="surrogateescape") as file:
        file.write("\n".join(odd) + "\n")
    team = replay.attach(root)
    here = mirrored(team)
    append_letter(replay, "after all that")
    here.refresh()
    assert mailbox.read(team, "alpha").messages[-1].content == "after all that"


@pytest.mark.long
def test_ten_thousand_letters_are_all_there(replay: Replay, root: Path) -> None:
    replay.copy("in_process")
    team = replay.attach(root)
    here = mirrored(team)
    letters = [
        {"from": "alpha", "text": f"letter {n % 5000}", "timestamp": "2026-11-23T00:10:00.000Z", "msg_id": f"m{n}"}
        for n in range(10_000)
    ]
    inbox = replay.config / "teams/session-390111e4/inboxes/team-lead.json"
    inbox.write_text(json.dumps(letters))
    here.refresh()
    inbox.write_text("[]")
    here.refresh()
    assert len(marks_of(team, "team-lead")) == 10_000 + 3
    assert read_team(team).unread["team-lead"] == 0


def test_a_killed_process_is_a_death(replay: Replay, root: Path, lead: subprocess.Popen[bytes]) -> None:
    replay.copy("in_process")
    team = replay.attach(root)
    here = mirrored(team)
    assert [agent.alive for agent in read_team(team).agents] == [True, True, False]
    lead.kill()
    lead.wait()
    assert not any(agent.alive for agent in read_team(team).agents)
    here.refresh()
    view = read_team(team)
    assert [(need.kind, need.agent) for need in view.needs] == [("death", "team-lead"), ("death", "alpha")]
    assert "its process is gone" in view.needs[0].summary
    messages.acknowledge(Team(team), "alpha")
    assert [need.agent for need in read_team(team).needs] == ["team-lead"]


def deaths(team: TeamDirectory) -> list[float]:
    return [agent.exit.at for agent in read_team(team).agents if agent.exit is not None]


def test_a_death_keeps_the_time_at_which_it_was_seen(replay: Replay, root: Path, lead: subprocess.Popen[bytes]) -> None:
    replay.copy("in_process")
    team = replay.attach(root)
    first, at = mirrored(team), time.time() + 100
    lead.kill()
    lead.wait()
    first._clock = lambda: at
    first.refresh()
    first.close()
    seen = deaths(team)
    assert at in seen
    later = mirror.Mirror(team, clock=lambda: at + 1000)
    later.refresh()
    assert deaths(team) == seen


def test_a_death_that_nothing_saw_has_the_time_of_the_last_sign(
    replay: Replay, root: Path, lead: subprocess.Popen[bytes]
) -> None:
    replay.copy("in_process")
    team = replay.attach(root)
    mirrored(team).close()
    lead.kill()
    lead.wait()
    (transcript,) = replay.config.glob("projects/*/*.jsonl")
    at = time.time() + 50
    os.utime(transcript, (at, at))
    later = mirror.Mirror(team, clock=lambda: at + 1000)
    later.refresh()
    assert at in deaths(team)
    assert max(deaths(team)) <= at


def test_another_process_with_the_same_pid_is_not_the_lead(replay: Replay, root: Path) -> None:
    replay.copy("in_process")
    (roster,) = replay.config.glob("teams/*/config.json")
    roster.write_text(roster.read_text().replace(f'"procStart": "{replay.ticks}"', '"procStart": "17"'))
    team = replay.attach(root)
    mirrored(team)
    assert not any(agent.alive for agent in read_team(team).agents)


def test_a_team_that_ended_while_nothing_mirrored_it_did_not_die(
    replay: Replay, root: Path, lead: subprocess.Popen[bytes]
) -> None:
    replay.copy("in_process")
    team = replay.attach(root)
    mirrored(team).close()
    lead.kill()
    lead.wait()
    for path in sorted(replay.config.glob("teams/*/**/*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    here = mirrored(team)
    view = read_team(team)
    assert here.has_ended
    assert {agent.state for agent in view.agents} == {"exited"}
    assert not view.needs


def test_one_process_at_a_time_mirrors_a_team(replay: Replay, root: Path) -> None:
    replay.copy("in_process")
    team = replay.attach(root)
    first, second = mirrored(team), mirror.Mirror(team)
    assert not second.refresh()
    first.close()
    assert second.refresh()
    assert len(marks_of(team, "alpha")) == 2


def test_what_the_other_program_decides_is_refused_here(replay: Replay, root: Path) -> None:
    replay.copy("in_process")
    team = Team(replay.attach(root))
    mirrored(team.directory)
    before = contents(team.directory.path)
    refused = (
        lambda: hire.spawn(team, hire.Hire(name="x", type="explore", prompt="look")),
        lambda: hire.resume(team, "alpha"),
        lambda: control.change_limits(team, "alpha", budget="$5"),
        lambda: operations.pause(team, "alpha"),
        lambda: control.interrupt(team, "alpha"),
        lambda: stop.stop(team, "alpha"),
        lambda: stop.stop_now(team, "alpha"),
        lambda: stop.remove(team, "alpha"),
        lambda: messages.send(team, "alpha", "hi"),
        lambda: messages.broadcast(team, "hi"),
        lambda: tasks.add_task(team, "more"),
        lambda: settings.set_budget(team, "$5"),
        lambda: settings.change_setting(team, "max_agents", "3"),
        lambda: operations.rename(team, "alpha", "words"),
        lambda: operations.raise_task(team, 1),
        lambda: operations.retry_task(team, 1),
    )
    for command in refused:
        with pytest.raises(BadDataError, match="Claude Code"):
            command()
    assert contents(team.directory.path) == before


def test_a_teammate_in_a_pane_has_a_process_of_its_own(replay: Replay, root: Path) -> None:
    replay.copy("panes")
    (roster,) = replay.config.glob("teams/*/config.json")
    whole = roster.read_text()
    roster.write_text(whole.replace('"backendType": "tmux"', '"backendType": ""').replace('"%0"', '""'))
    team = replay.attach(root)
    here = mirror.Mirror(team, clock=lambda: 1_795_392_130)
    here.refresh()
    roster.write_text(whole)
    here.refresh()
    assert {agent.name: agent.pid for agent in read_team(team).agents if agent.name == "alpha"} == {"alpha": None}
    assert not read_team(team).needs
    arguments = ["--agent-id", f"alpha@session-{replay.session}"]
    with process(sys.executable, "-c", "import time; time.sleep(600)", *arguments) as teammate:
        eventually(lambda: here.refresh() and read_team(team).agent("alpha").pid == teammate.pid)  # type: ignore[union-attr]
        teammate.kill()
    here.refresh()
    assert [(need.kind, need.agent) for need in read_team(team).needs] == [("death", "alpha")]


def test_a_teammate_whose_process_is_never_found_is_dead(replay: Replay, root: Path) -> None:
    replay.copy("panes")
    team = replay.attach(root)
    start = 1_795_392_140.0
    here = mirror.Mirror(team, clock=lambda: start)
    here.refresh()
    assert not read_team(team).needs
    here.close()
    later = mirror.Mirror(team, clock=lambda: start + 60)
    later.refresh()
    assert [(need.kind, need.agent) for need in read_team(team).needs] == [("death", "alpha")]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_conversation_in_two_transcripts_is_mirrored_once(replay: Replay, root: Path, restarts: bool) -> None:
    replay.copy("in_process")
    team = replay.attach(root)
    here = mirrored(team)
    before = contents(team.agents / "alpha"), read_team(team).agents[1].status.tokens
    if restarts:
        here.close()
        here = mirror.Mirror(team)
    (transcript,) = replay.config.rglob("agent-aalpha-*.jsonl")
    copy = transcript.with_name("agent-a0123456789abcdef.jsonl")
    copy.write_bytes(transcript.read_bytes())
    copy.with_suffix(".meta.json").write_text('{"agentType":"alpha"}')
    here.refresh()
    journal, tokens = str(team.agent("alpha").journal), read_team(team).agents[1].status.tokens
    assert (contents(team.agents / "alpha")[journal], tokens) == (before[0][journal], before[1])
    assert len(read_team(team).agents) == 3


def test_a_lost_note_of_the_mirror_mixes_no_conversations_up(replay: Replay, root: Path) -> None:
    replay.copy("panes")
    team = replay.attach(root)
    mirrored(team).close()
    before = {agent.name: agent.status.tokens for agent in read_team(team).agents}
    team.mirror.on_disk.unlink()
    mirrored(team)
    assert {agent.name: agent.status.tokens for agent in read_team(team).agents} == before


def test_a_prompt_whose_answer_was_not_seen_is_closed_by_the_result(replay: Replay, root: Path) -> None:
    replay.copy("in_process")
    team = replay.attach(root)
    here = mirrored(team)
    frame = {"type": "permission_request", "request_id": "perm-1", "tool_name": "Write", "input": {"file_path": "b"}}
    letter = {"from": "alpha", "text": json.dumps(frame), "timestamp": "2026-11-23T00:10:00.000Z", "msg_id": "m1"}
    (replay.config / "teams/session-390111e4/inboxes/team-lead.json").write_text(json.dumps([letter]))
    here.refresh()
    assert [need.summary for need in read_team(team).needs] == ["wants to run Write: b"]
    append_record(replay, [{"type": "tool_result", "tool_use_id": "toolu_9", "content": "done"}])
    here.refresh()
    assert not read_team(team).needs
    assert [agent.state for agent in read_team(team).agents if agent.name == "alpha"] == ["working"]


def test_requests_of_the_program_are_skipped_before_they_are_parsed() -> None:
    blob = b'{"type":"api-request-blob","message":{"role":"user","content":"' + b"x" * 100
    assert formats.transcript_record(blob) is None
    assert formats.transcript_record(b'{"type":"user","message":{"content":"hi"}}') is not None


def test_file_tools_keep_the_names_that_the_views_know(replay: Replay, root: Path) -> None:
    replay.copy("in_process")
    team = replay.attach(root)
    mirrored(team)
    events = [event for event, _ in store_journal.read(team.agent("alpha").journal) if event is not None]
    assert [e.input["path"] for e in events if isinstance(e, ToolStart) and e.name == "read_file"] == ["a.txt"]
    assert next(b["text"] for e in events if isinstance(e, Reply) for b in e.content if "text" in b) == "I read."
    assert [e.message.to for e in events if isinstance(e, Sent)] == ["team-lead"] * 3
    assert read_team(team).plan_approver == OPERATOR


def test_a_thread_mirrors_within_a_second(replay: Replay, root: Path) -> None:
    replay.copy("in_process")
    team = replay.attach(root)
    thread = mirror.MirrorThread(team)
    thread.start()
    try:
        eventually(lambda: len(marks_of(team, "alpha")) == 2)
        append_letter(replay, "live")
        eventually(lambda: len(marks_of(team, "alpha")) == 3)
    finally:
        thread.stop()
    eventually(lambda: not thread.mirror.is_active)


def test_versions_outside_the_tested_ones_are_known() -> None:
    assert [formats.is_tested(v) for v in ("2.1.176", "2.1.177", "2.1.250", "2.1.332", "2.1.333", "3.0.0", "")] == [
        False, True, True, True, False, False, True,
    ]  # fmt: skip


def play_session(replay: Replay, root: Path, pid: int, created: float, ident: str) -> None:
    """Write the files of a session of 2.1.197 that was started with `--session-id`, and of its team."""
    ticks = unix_process.start_ticks(pid)
    member = {"agentId": "team-lead@T", "name": "team-lead", "agentType": "team-lead", "cwd": str(root)}
    team = {"name": "T", "createdAt": int(created * 1000), "leadSessionId": "no-such-session", "members": [member]}
    session = {
        "pid": pid, "sessionId": ident, "cwd": str(root), "procStart": str(ticks), "version": "2.1.197",
        "startedAt": int(created * 1000) + 400,
    }  # fmt: skip
    for path, content in (("teams/T/config.json", team), (f"sessions/{pid}.json", session)):
        (replay.config / path).parent.mkdir(parents=True, exist_ok=True)
        (replay.config / path).write_text(json.dumps(content))


def test_a_session_with_a_given_id_is_found(replay: Replay, root: Path) -> None:
    play_session(replay, root, replay.pid, time.time(), "given")
    team = replay.attach(root)
    mirrored(team).close()
    assert places.find_attached(root, ["given"]) == team.path
    (lead,) = read_team(team).agents
    assert lead.alive


def test_no_other_session_is_taken_for_the_lead(replay: Replay, root: Path) -> None:
    began = unix_process.started_at(replay.ticks)
    play_session(replay, root, replay.pid, began - 5, "earlier")
    team = replay.attach(root)
    mirrored(team).close()
    assert places.find_attached(root, ["earlier"]) is None
    # Two that began together: neither is known to be the one.
    with process() as other:
        now = time.time()
        play_session(replay, root, other.pid, now, "one")
        play_session(replay, root, replay.pid, now, "two")
        mirrored(team).close()
        assert (places.find_attached(root, ["one"]), places.find_attached(root, ["two"])) == (None, None)
        other.kill()


def test_what_claude_code_caches_for_an_hour_is_counted_apart() -> None:
    usage = {"cache_creation_input_tokens": 90, "cache_creation": {"ephemeral_1h_input_tokens": 70}}
    found = formats.usage({"message": {"usage": usage}})
    assert (found.cache_write, found.cache_write_1h, found.total) == (90, 70, 90)
