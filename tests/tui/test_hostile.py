"""Text from agents is only data wherever it is shown: no markup, no control sequence, no crash."""

from pathlib import Path

import pytest

from crewboard.readmodel.processes import ProcessNode
from crewboard.records.events import Intake
from crewboard.records.processes import Exit
from crewboard.store import agents, journal
from crewboard_tui.views.agent import AgentPage
from crewboard_tui.views.agent_tabs import NAMES
from crewboard_tui.views.roster import Roster
from tests.frozen import NOW, Frozen, make_empty
from tests.tui.stage import Stage, opened

_MARKUP = "[/x] [b]bold[/b] [@click=app.leave]press me[/] x[i] $secret {b} %s \\[esc] `code` <!-- c --> \ud800"
_CONTROLS = "\x1b[2J\x1b]0;owned\x07\x1b[31m red two\nlines\r\nand\ttabs \u202egnorts\u202c \u200b\ufeff\x9b5m"

HOSTILE = {"both": f"{_MARKUP} {_CONTROLS}", "long": f"{_CONTROLS} {'x' * 10_000} {'日本' * 3_000}"}
"""Where a text is cut off, one of them begins with each. The default run has the first."""


def _fill(frozen: Frozen, text: str) -> None:
    """Put `text` into every place that an agent, a mail or a file can fill."""
    hire = frozen.hire
    hire("mole", "code", "working", text, ago=5, pid=11, role=text, last_error=text, sandbox=text, model=text, task=1)
    hire("idler", "explore", "idle", text, ago=5, pid=12, last_error=text)
    hire("waiter", "code", "retrying", text, ago=5, pid=13, retry_at=NOW + 3, last_error=text)
    hire("sticky", "code", "working", text, ago=5, pid=14, deadline=NOW - 1)
    frozen.gone("corpse", "code", Exit(run=1, signal=9, reason="died", at=NOW - 9, buried=True), 15, role=text)
    frozen.gone("liar", "code", Exit(run=1, code=3, reason=text, at=NOW - 9, buried=True), 16)
    frozen.task(1, text, "in_progress", owner="mole", description=text, required_type=text)
    frozen.task(2, text, last_owner="corpse")
    frozen.task(3, text, blocked_by=[1])
    for name in ("operator", "lead", "mole", "corpse"):
        frozen.mail(len(name), "mole", name, "message", text, 30, result=text)
    frozen.said("mole", 20, text)
    frozen.said("mole", 19, text, "thinking")
    frozen.did("mole", 18, "bash", {"command": text, "path": text}, f"Error: {text}", 0.2)
    frozen.did("mole", 16, "edit_file", {"path": text, "old_text": text, "new_text": f"{text}\n{text}"}, "edited", 0)
    frozen.probe.families[11] = (ProcessNode(11, 0, text, 1.0, 1024), ProcessNode(17, 1, text, 1.0, 1024))
    frozen.began("corpse", 17, "bash", {"command": text})
    agent = frozen.directory.agent("mole")
    journal.append(agent.journal, Intake(ts=NOW, run=1, prompt=text))
    agent.live.write_bytes(text.encode("utf-8", "surrogatepass") + b"\xff\xfe")
    frozen.directory.agent("corpse").log.write_bytes(text.encode("utf-8", "surrogatepass") + b"\xff")
    payload = {"plan": f"# {text}\n\n- {text}\n```\n{text}\n```", "files": [text, text], "commands": text, "risk": text}
    frozen.asks("p1", "plan_approval", "mole", 10, payload)  # type: ignore[arg-type]
    frozen.asks("q1", "question", "waiter", 9, {"question": text, "options": [text, text]})
    frozen.asks("r1", "permission", "idler", 8, {"tool": text, "summary": text, "input": {text[:99]: text}})


@pytest.fixture(params=[pytest.param(kind, marks=() if kind == "both" else pytest.mark.long) for kind in HOSTILE])
def hostile(request: pytest.FixtureRequest, tmp_path: Path) -> Frozen:
    """Return a team that is full of one kind of hostile text."""
    frozen = make_empty(tmp_path / "inkpot")
    _fill(frozen, HOSTILE[request.param])
    return frozen


def _check(stage: Stage) -> None:
    for line in stage.text:
        assert line.isprintable() or not line, repr(line)
        for forbidden in ("\x1b", "\u202e", "\u200b", "\x9b"):
            assert forbidden not in line
    assert stage.app.is_running
    assert stage.app._exception is None


@pytest.mark.long
async def test_every_view_shows_it_as_text(hostile: Frozen) -> None:
    async with opened(hostile, 100, 30) as stage:
        for key in "2345671":
            await stage.press(key, "j", "j")
            _check(stage)
            await stage.press("j", "j")
            _check(stage)
        await stage.press("G", "enter")
        for _ in range(5):
            _check(stage)
            await stage.press("]")
        for _ in range(5):
            await stage.press("!")
            _check(stage)


@pytest.mark.long
@pytest.mark.parametrize(("width", "height"), [(100, 30), pytest.param(40, 10, marks=pytest.mark.long)])
async def test_every_tab_shows_hostile_text_harmlessly(hostile: Frozen, width: int, height: int) -> None:
    async with opened(hostile, width, height) as stage:
        await stage.app.push_screen(AgentPage(stage.app.context, "mole"))
        for name in NAMES:
            await stage.turns_to(name)
            await stage.settles()
            for keys in ("o", "g", "G", "o"):
                await stage.press(keys)
                _check(stage)
            await stage.press("]")


@pytest.mark.parametrize(("width", "height"), [(170, 50), pytest.param(40, 10, marks=pytest.mark.long)])
async def test_every_request_shows_it_as_text(hostile: Frozen, width: int, height: int) -> None:
    async with opened(hostile, width, height) as stage:
        for need in ("plan:mole:p1", "question:waiter:q1", "permission:idler:r1"):
            await stage.app.open_need(need)
            await stage.press("G")
            _check(stage)
            await stage.press("escape")


@pytest.mark.long
async def test_hire_messages_and_help_show_it_as_text(hostile: Frozen) -> None:
    async with opened(hostile, 80, 24) as stage:
        for keys in (("n",), ("escape", "?"), ("escape", "m"), ("escape", "b"), ("escape", "/")):
            await stage.press(*keys)
            _check(stage)
        await stage.press("escape", ":")
        await stage.sees("Where to go, or what to do", "needs you · dead")
        _check(stage)
        await stage.write("hire")
        await stage.sees("hire an agent")
        _check(stage)


@pytest.mark.long
async def test_a_form_filled_from_an_agent_or_a_type_shows_it_as_text(hostile: Frozen) -> None:
    text = hostile.directory.agent("mole").live.read_bytes().decode("utf-8", "replace")
    mole = hostile.directory.agent("mole")
    spec = mole.spec.load()
    assert spec is not None
    agents.change_spec(mole, lambda _: spec.replace(prompt=text, model=text))
    types = hostile.directory.root / ".crewboard" / "agents"
    types.mkdir()
    (types / "odd.md").write_text('---\nname: odd\ndescription: "\\e]52;c;eA==\\a owned"\n---\nx\n')
    async with opened(hostile, 100, 30) as stage:
        stage.app.screen.query_one(Roster).want("mole")
        await stage.press("N")
        await stage.sees("Hire an agent")
        _check(stage)
        await stage.press("tab")
        for _ in range(8):
            await stage.press("right")
            _check(stage)


async def test_it_is_shown_and_not_swallowed(tmp_path: Path) -> None:
    frozen = make_empty(tmp_path / "inkpot")
    frozen.hire("mole", "code", "working", "[/x] \x1b[31m [b]x[i][/b]", ago=5, pid=11)
    async with opened(frozen, 120, 36) as stage:
        await stage.sees("[/x] ␛[31m [b]x[i][/b]")
