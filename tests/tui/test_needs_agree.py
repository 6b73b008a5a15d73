"""Board, alert line, title, notifications, `--plain`, `status --json` and `wait --needs` tell of the same needs."""

import json
from collections.abc import Callable
from typing import get_args

import pytest

from crewboard.commands import context
from crewboard.commands.context import CommandLine
from crewboard.readmodel.as_json import status
from crewboard.readmodel.reader import TeamReader
from crewboard.readmodel.team import NeedKind, TeamView
from crewboard.records.agents import McpState, Work
from crewboard.records.processes import Exit
from crewboard.records.team import Checked
from crewboard.store import agents
from crewboard_tui.cli import board as plain
from crewboard_tui.cli import watching
from crewboard_tui.cli.answers import answers
from crewboard_tui.keymap.bindings import KEYS_OF_NEED
from crewboard_tui.notifications import BELL, NeedsDiff, TerminalNotifications, title_of
from crewboard_tui.queries import Snapshot
from crewboard_tui.render.lines import plain as plain_text
from crewboard_tui.render.looks import NEED_LOOKS
from crewboard_tui.views.agent_tabs import mcp_servers_of
from crewboard_tui.views.rows import explanation_lines
from crewboard_tui.widgets.bars import alert_line
from crewboard_tui.widgets.line_list import LineList
from tests.frozen import NOW, Frozen
from tests.placed import add_host, want
from tests.tui.stage import opened


def _die(team: Frozen) -> None:
    team.gone("who", "code", Exit(run=1, signal=9, reason="died", at=NOW - 5, buried=True), 71)


def _ask(kind: str) -> Callable[[Frozen], None]:
    def ask(team: Frozen) -> None:
        team.hire("who", "code", "working", "", ago=9, pid=71)
        team.asks("r-1", kind, "who", 9, {"plan": "# Do it", "question": "why?", "tool": "bash", "summary": "ls"})  # type: ignore[arg-type]

    return ask


def _run(**more: object) -> Callable[[Frozen], None]:
    def run(team: Frozen) -> None:
        state = str(more.get("state", "working"))
        team.hire("who", "code", state, "", ago=9, pid=71, **{key: more[key] for key in more if key != "state"})  # type: ignore[arg-type]

    return run


def _not_begun(team: Frozen) -> None:
    agent = team.gone("who", "code", Exit(run=1, code=0, reason="finished", at=NOW - 900, buried=True), 71)
    spec = agent.spec.load()
    assert spec is not None
    agents.change_spec(agent, lambda _: spec.replace(run=2, at=NOW - 900))


def _wait_for_host(team: Frozen) -> None:
    add_host(team.directory, "build1")
    want(team.directory, "who", 40)


def _damage(team: Frozen) -> None:
    team.directory.task(3).on_disk.write_text("{")


def _result(team: Frozen) -> None:
    team.mail(1, "who", "lead", "result", "41 modules", 9, result="results/who-1-1.md")


def _collide(team: Frozen) -> None:
    for name, at in (("who", NOW - 20), ("other", NOW - 9)):
        team.hire(name, "code", "working", "", ago=30, pid=71, work=Work(files={"api.py": at}))


_FAILED = Checked(at=NOW - 9, command="make test", exit_code=2, result="results/who-check.txt")

MAKE: dict[NeedKind, Callable[[Frozen], None]] = {
    "death": _die,
    "plan": _ask("plan_approval"),
    "permission": _ask("permission"),
    "question": _ask("question"),
    "review": _ask("task_review"),
    "stuck": _run(deadline=NOW - 9),
    "looping": _run(repeats=6),
    "failed_start": _not_begun,
    "no_host": _wait_for_host,
    "failed": _run(state="idle", failed=69, failed_at=NOW - 9, last_error="no"),
    "collision": _collide,
    "outage": _run(state="retrying", outage_since=NOW - 9, retry_at=NOW + 60, last_error="529"),
    "damaged": _damage,
    "task_failed": lambda team: team.task(4, "fix it", "failed", owner="who"),
    "check_failed": lambda team: team.task(4, "fix it", "in_progress", owner="who", checked=_FAILED, check_failures=3),
    "mcp": _run(mcp=[McpState("git", problem="it ended", since=NOW - 9)]),
    "result": _result,
}


def _read(team: Frozen) -> TeamView:
    return TeamReader(team.directory, clock=team.team.now, probe=team.probe).read()


@pytest.mark.parametrize("kind", get_args(NeedKind))
def test_every_word_outside_tells_of_the_same_need(
    empty: Frozen, kind: NeedKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    told = TerminalNotifications(written.append, notify="bell")
    told.read(_read(empty))
    MAKE[kind](empty)
    view = _read(empty)
    (need,) = view.needs
    assert need.kind == kind
    assert KEYS_OF_NEED[kind], "each kind has keys"
    told.read(view)
    assert written.count(BELL) == 1
    assert title_of(view).startswith(f"{NEED_LOOKS[kind].glyph}1 ")
    (sentence,) = plain.news(view, NeedsDiff(), context.CommandLine())
    assert need.summary.partition(": ")[2] in sentence
    assert [each["kind"] for each in status(view)["needs_you"]] == [kind]
    monkeypatch.setattr(
        watching, "TeamReader", lambda _: TeamReader(empty.directory, clock=lambda: NOW, probe=empty.probe)
    )
    assert watching._wait_for_need(empty.team, 0).needs == (need,)
    snapshot = Snapshot(view, {})
    assert need.summary[:20] in plain_text(alert_line(snapshot, NOW, 170))


_IN_ITS_ROW: tuple[NeedKind, ...] = (
    "death", "plan", "permission", "question", "review", "stuck", "looping", "failed_start", "no_host", "failed",
)  # fmt: skip
"""The kinds that the row of an agent tells, so that no list on the Board repeats them."""

_IN_DEFAULT_RUN = ("death", "plan", "task_failed", "damaged")
"""An agent's, a request's, a task's and the team's."""


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind in _IN_DEFAULT_RUN else pytest.mark.long) for kind in get_args(NeedKind)],
)
async def test_every_place_of_the_dashboard_tells_of_the_same_need(empty: Frozen, kind: NeedKind) -> None:
    MAKE[kind](empty)
    (need,) = _read(empty).needs
    async with opened(empty, 170, 50) as stage:
        await stage.until(lambda: need.summary.split(": ")[-1][:12] in stage.all, "the need on the Board")
        shown = [row.key for rows in stage.app.screen.query("#board-needs").results(LineList) for row in rows.rows]
        assert shown == ([] if kind in _IN_ITS_ROW else [need.key])
        await stage.press("4")
        await stage.sees("Needs you · 1")
        assert [row.key for row in stage.app.screen.query_one("#needs", LineList).rows] == [need.key]


def test_a_need_ends_with_the_entry_of_its_server(empty: Frozen) -> None:
    root = empty.directory.root
    lacking = [McpState(name, ".mcp.json", problem="new", since=NOW - 9) for name in ("ghost", "kept", "x")]
    lacking.append(McpState("typed", ".claude/agents/a.md", problem="it ended", since=NOW - 9))
    empty.hire("who", "code", "working", "", ago=30, pid=71, mcp=lacking)

    def bring(**servers: object) -> None:
        (root / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))

    def lacks() -> list[str | None]:
        return [need.server for need in _read(empty).needs if need.kind == "mcp"]

    bring(ghost={"command": "true"}, kept={"command": "true"}, x={})
    assert {*lacks()} == {"ghost", "kept", "typed", "x"}
    bring(kept={"command": "true"}, x={})
    assert {*lacks()} == {"kept", "typed", "x"}
    (root / ".mcp.json").write_text("{")
    assert "ghost" in lacks(), "what cannot be read says nothing"
    (root / ".mcp.json").unlink()
    assert lacks() == ["typed"]


def test_the_screen_says_how_a_server_is_accepted(empty: Frozen) -> None:
    lacking = McpState("git", ".mcp.json", problem="is new", new=True, since=NOW - 9)
    empty.hire("who", "code", "working", "", ago=30, pid=71, mcp=[McpState("time", tools=["mcp__time__now"]), lacking])
    (empty.directory.root / ".mcp.json").write_text('{"mcpServers": {"git": {"command": "true"}}}')
    view = _read(empty)
    (need,) = view.needs
    shown = [plain_text(line) for line in explanation_lines(need, Snapshot(view), NOW, 80, CommandLine())]
    assert "accept     crewboard mcp approve git" in shown
    (agent,) = view.agents
    assert mcp_servers_of(agent) == "time: 1 tool · git: is new"


def test_the_screen_and_status_say_how_to_start_a_lost_host(empty: Frozen) -> None:
    add_host(empty.directory, "build1", labels=["gpu"], at=NOW - 40, offline=True)
    for name in ("who", "other"):
        empty.hire(name, "code", "idle", "", ago=30, pid=71, host="build1", boot_id="elsewhere")
    view = _read(empty)
    (need,) = view.needs
    start = "crewboard --offline host --name build1 --label gpu"
    assert list(answers(need, CommandLine())) == [
        ("start that host", start),
        ("see the hosts", "crewboard hosts"),
    ]
    shown = "\n".join(plain_text(line) for line in explanation_lines(need, Snapshot(view), NOW, 120, CommandLine()))
    assert f"what helps start that host: {start}" in shown
    assert "a host of this name takes its agents again" in shown
