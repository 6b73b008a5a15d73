"""Make `screenshots/` from the frozen team with `python -m tests.screenshots`; each run gives the same bytes."""

import asyncio
import contextlib
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from msgspec.structs import replace

from crewboard import AgentView, TeamView
from crewboard.readmodel.processes import Usage
from crewboard.records.agents import Spec
from crewboard.records.processes import Exit
from crewboard.records.processes import Usage as HostUsage
from crewboard.records.team import AttachedTeam
from crewboard.store import agents, leases, roster
from crewboard_tui.queries import ProcessHistoryReader
from crewboard_tui.settings import Settings
from tests.frozen import NOW, PLAN, Frozen, make_empty, make_team
from tests.placed import add_host, place
from tests.tui.stage import Stage, opened
from tests.tui.test_changes import AFTER, Repository

HERE = Path(__file__).parent.parent / "screenshots"


@dataclass(frozen=True)
class Shot:
    """One picture: the keys to press, the text to type, and the words that must be on the screen.

    With `worktrees`, two agents have changed files in checkouts of their own. With `attached`, the agents are those of
    Claude Code. With `hosts`, they run on three hosts, one of which was lost.
    """

    name: str
    keys: str
    sees: str
    writes: tuple[str, ...] = ()
    width: int = 120
    height: int = 36
    theme: str = "dark"
    worktrees: bool = False
    attached: bool = False
    hosts: bool = False
    agents: int = 0
    """How many agents there are at least."""


_TO_API = "j j j j j"

SHOTS = (
    Shot("board", _TO_API, "and▌"),
    Shot("board-80x24", _TO_API, "and▌", width=80, height=24),
    Shot("board-170x50", _TO_API, "TEAM", width=170, height=50),
    Shot("board-12-agents", "", "Team 12", width=80, height=24, agents=12),
    Shot("board-30-agents", "", "Team 30", height=40, agents=30),
    Shot("board-light", _TO_API, "and▌", theme="light"),
    Shot("board-contrast", _TO_API, "and▌", theme="contrast"),
    Shot("board-catppuccin-mocha", _TO_API, "and▌", theme="catppuccin-mocha"),
    Shot("board-tokyo-night", _TO_API, "and▌", theme="tokyo-night"),
    Shot("needs", "!", "collected 214 items"),
    Shot("needs-80x24", "!", "collected 214 items", width=80, height=24),
    Shot("needs-80x24-light", "!", "collected 214 items", width=80, height=24, theme="light"),
    Shot("plan-review", "! !", "PLAN v2"),
    Shot("plan-review-80x24", "! !", "PLAN v2", width=80, height=24),
    Shot("plan-review-80x24-light", "! !", "PLAN v2", width=80, height=24, theme="light"),
    Shot("question-80x24", "! ! !", "QUESTION", width=80, height=24),
    Shot("hire", "n", "Hire an agent", ("fixer2", "tab", "tab", "backend developer", "tab",
         "Make parse() accept the 2.0 grammar. Keep the 1.x tests green.", "tab", "space")),
    Shot("inbox", "2 j j j j j j j", "cursor parameter"),
    Shot("inbox-60x20", "2 j j", "ping", width=60, height=20),
    Shot("tasks", "3 j j j j", "orphaned by parser"),
    Shot("processes", "5 j j j j j", "sandbox"),
    Shot("feed", "6", "Feed"),
    Shot("feed-light", "6", "Feed", theme="light"),
    Shot("cost", "7", "TEAM"),
    Shot("changes", "8", "rows[: size + 1]", worktrees=True),
    Shot("changes-diff", "8 enter ] enter j j", "Changes › api", worktrees=True),
    Shot("agent", f"{_TO_API} enter", "need a cursor"),
    Shot("agent-mail", f"{_TO_API} enter ]", "not read yet"),
    Shot("agent-transcript", f"{_TO_API} enter ] ] g j j j j j j j enter", "━━ Transcript"),
    Shot("agent-files", f"{_TO_API} enter ] ] ] enter", "━━ Files"),
    Shot("agent-vitals", f"{_TO_API} enter [", "cache hits"),
    Shot("hosts", "H", "would wait", height=26, hosts=True),
    Shot("help", "?", "Keys that work here"),
    Shot("teams", "t", "Teams"),
    Shot("attached", "j", "Claude Code 2.1.330", attached=True),
    Shot("attached-plan", "!", "PLAN v1", attached=True),
)  # fmt: skip


async def _write(stage: Stage, text: str) -> None:
    if text in ("tab", "space"):
        await stage.press(text)
    else:
        await stage.write(text)


async def paint(shot: Shot, home: Path) -> str:
    """Return the picture as SVG."""
    frozen = make_attached(home) if shot.attached else make_team(home / "inkpot")
    if not shot.attached:
        add_work(frozen)
    if shot.worktrees:
        repository = Repository(frozen)
        repository.snapshot("api", {"src/pages.py": AFTER, "src/cursor.py": "A = 1\n"})
        repository.snapshot("ui", {"README.md": "# Ink\n"})
        repository.write({"README.md": "# Inkpot 2\n"})
        repository.commit("meanwhile")
    if shot.agents:
        add_agents(frozen, shot.agents)
    if shot.hosts:
        place_on_hosts(frozen)
    # Nothing of Claude Code is here that could be mirrored.
    mirrors = leases.take(frozen.directory.mirror_lock)
    assert mirrors is not None
    try:
        with contextlib.chdir(frozen.directory.root):
            return await _paint(shot, frozen)
    finally:
        os.close(mirrors.descriptor)


def make_attached(home: Path) -> Frozen:
    """Make the mirror of a team of Claude Code: a teammate works, another one waits with a plan."""
    frozen = make_empty(home / "inkpot", "claude-5d9dbff2")
    frozen.probe.offline = False
    attached = AttachedTeam(
        program="claude-code", team="inkpot", config_dir=str(home / ".claude"), version="2.1.330", hooks=True
    )
    roster.change(frozen.directory, lambda config: setattr(config, "attached", attached))
    frozen.hire("team-lead", "team-lead", "idle", "", ago=41, pid=0)
    frozen.hire("alpha", "general-purpose", "waiting", "waits for a yes", ago=66, pid=0, waiting_for="plan-1")
    frozen.hire("beta", "Explore", "working", "grep JWT_KEY", ago=12, pid=0)
    frozen.mail(1, "team-lead", "alpha", "message", "Rotate the signing keys. Plan it first.", 130)
    frozen.asks("plan-1", "plan_approval", "alpha", 66, {"plan": PLAN, "plan_file_path": "plans/rotate.md"})
    return frozen


def place_on_hosts(frozen: Frozen) -> None:
    """Let the agents run on three hosts: two are up, the third was lost with two agents, one of which needs a GPU."""
    measured = {name: HostUsage(cpu=cpu, memory=megabytes << 20) for name, cpu, megabytes in _MEASURED}
    machine: dict[str, Any] = {"version": "0.2.0", "cores": 8, "memory": 32 << 30, "usage": measured}
    add_host(frozen.directory, "build1", labels=["big"], machine="rack-7", pid=812, load=3.1, **machine)
    add_host(frozen.directory, "build2", machine="rack-9", pid=633, load=9.7, **machine)
    add_host(frozen.directory, "gpu1", labels=["gpu"], machine="rack-2", pid=415, **(machine | {"at": NOW - 41}))
    frozen.probe.hosts_up = frozenset({"build1", "build2"})
    for name, host in _PLACES.items():
        place(frozen, name, host)
    lost = Exit(run=1, reason="lost", at=NOW - 24, buried=True, evidence="no sign of life of gpu1 for 15 s")
    for name in ("perf", "ui"):
        place(frozen, name, "gpu1")
        del frozen.probe.held[name]
        agents.write_exit(frozen.directory.agent(name), lost)
    agents.change_spec(frozen.directory.agent("perf"), _needs_gpu)


def _needs_gpu(spec: Spec | None) -> Spec:
    assert spec is not None
    return spec.replace(flags=spec.flags.replace(needs=["gpu"]))


_PLACES = {
    "auth-plan": "build1", "docs": "build1", "migrate": "build1", "reviewer": "build1", "parser": "build2",
    "flaky-hunt": "build2", "api": "build2", "release": "build2", "scan": "build2",
}  # fmt: skip

_MEASURED = (
    ("auth-plan", 0.4, 118), ("docs", 0.2, 96), ("migrate", 2.1, 210), ("reviewer", 0.1, 79),
    ("flaky-hunt", 298.0, 910), ("api", 41.0, 340), ("release", 0.3, 101),
)  # fmt: skip
"""The measures that hosts took of their agents: percent of one core, and MiB."""


_CALLS: dict[str, tuple[str, dict[str, object], tuple[int, ...]]] = {
    "flaky-hunt": ("bash", {"command": "pytest -k sync"}, (470, 430, 380, 340, 300, 255, 240, 225, 210, 195, 185)),
    "perf": (
        "grep",
        {"pattern": "lru_cache", "path": "src/"},
        (420, 380, 370, 310, 250, 245, 190, 130, 100, 60, 35),
    ),
    "ui": ("read_file", {"path": "web/orders.ts"}, (450, 390, 330, 325, 320, 260, 200, 190, 140, 80, 75, 45)),
    "migrate": ("read_file", {"path": "migrations/0040.py"}, (640, 620, 600, 580, 560)),
    "docs": ("read_file", {"path": "guide/api.md"}, (440, 400, 360, 350, 290, 230, 225, 170, 110, 105, 90)),
}
"""Calls of agents, with how many seconds ago each was."""


def add_work(frozen: Frozen) -> None:
    """Record earlier calls of agents, for their lanes."""
    for name, (tool, arguments, moments) in _CALLS.items():
        for ago in moments:
            frozen.did(name, ago, tool, arguments, "(done)", 0.4)


def add_agents(frozen: Frozen, count: int) -> None:
    """Hire agents that read, until there are so many."""
    names = frozen.directory.agents
    for number in range(1, count + 1 - len(list(names.iterdir()))):
        frozen.hire(
            f"survey-{number}", "explore", "working", f"read_file src/part{number}.py", ago=7 * number,
            pid=5000 + number, cpu=number % 7, rss=60 + number,
        )  # fmt: skip
        for ago in range(10 * (number % 5), 400, 45 + number):
            frozen.did(f"survey-{number}", ago, "read_file", {"path": f"src/part{number}.py"}, "(done)", 0.4)


def _note_past(note: Callable[[ProcessHistoryReader, TeamView], None]) -> Callable[[Any, TeamView], None]:
    """Return a `note` that records two minutes of measurements before the first one."""
    # The readers themselves: the id of one that is gone may be that of the next.
    known = set[ProcessHistoryReader]()

    def note_all(reader: ProcessHistoryReader, view: TeamView) -> None:
        if reader not in known:
            known.add(reader)
            for ago in range(118, 0, -2):
                past = [replace(each, usage=_used(each, ago)) for each in view.agents]
                note(reader, replace(view, now=view.now - ago, agents=past))
        note(reader, view)

    return note_all


def _used(agent: AgentView, ago: int) -> Usage | None:
    """Return what an agent used some seconds ago: now more, now less, of a memory that grew."""
    if agent.usage is None:
        return None
    share = (1 + (ago // 14 * 7 + len(agent.name)) % 5) / 5
    memory = int(agent.usage.memory * (1 - ago * (1 + len(agent.name) % 4) / 800))
    return Usage(agent.usage.cpu_percent * share, memory, agent.usage.children)


async def _paint(shot: Shot, frozen: Frozen) -> str:
    async with opened(frozen, shot.width, shot.height, settings=Settings(theme=shot.theme)) as stage:
        for key in shot.keys.split():
            await stage.press(key)
            await stage.settles()
            # On a busy machine, git takes longer than the screen.
            await stage.sees_not("reading …")
        await stage.sees(shot.sees)
        for text in shot.writes:
            await _write(stage, text)
        await stage.settles()
        return stage.app.export_screenshot(title="crewboard")


@contextmanager
def same_everywhere(home: Path) -> Iterator[None]:
    """Set a fixed home, a fixed time zone, colours, and an ordinary user."""
    kept = dict(os.environ)
    os.environ.update(HOME=str(home), TZ="UTC", COLORTERM="truecolor", TERM="xterm-256color")
    for name in ("NO_COLOR", "CREWBOARD_MODEL", "ANTHROPIC_MODEL"):
        os.environ.pop(name, None)
    time.tzset()
    try:
        with (
            mock.patch("crewboard.unix.process.runs_as_root", return_value=False),
            mock.patch.object(ProcessHistoryReader, "note", _note_past(ProcessHistoryReader.note)),
        ):
            yield
    finally:
        os.environ.clear()
        os.environ.update(kept)
        time.tzset()


def paint_all(folder: Path, shots: tuple[Shot, ...] = SHOTS) -> list[Path]:
    """Write every picture into `folder`."""
    painted = []
    for shot in shots:
        with tempfile.TemporaryDirectory() as home, same_everywhere(Path(home)):
            path = folder / f"{shot.name}.svg"
            path.write_text(asyncio.run(paint(shot, Path(home))))
            painted.append(path)
    return painted


AS_PNG = (
    "board", "board-light", "needs-80x24", "needs-80x24-light", "plan-review-80x24", "plan-review-80x24-light",
    "board-12-agents", "board-30-agents",
)  # fmt: skip
"""Pictures that are PNG too, because a browser loads no font for an SVG in a page."""


_FONT = "DejaVu Sans Mono"


def rasterize(svg: Path, browser: str, scale: float) -> Path:
    """Write a picture as PNG next to it, `scale` pixels for each of its own, in a font of this machine.

    Of the font that the SVG names, which a browser would load from a server, the page would need the network, and other
    machines would draw other pictures.
    """
    text = re.sub(r"@font-face \{.*?\}", "", svg.read_text(), flags=re.DOTALL).replace("Fira Code", _FONT)
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
    assert size is not None
    window = ",".join(str(math.ceil(float(each))) for each in size.groups())
    png = svg.with_suffix(".png")
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder) / svg.name
        local.write_text(text)
        flags = (
            "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={window}",
            f"--force-device-scale-factor={scale}",
        )  # fmt: skip
        command = [browser, *flags, f"--screenshot={png}", local.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    return png


def reduce(png: Path) -> None:
    """Keep few colours of a picture: that is a third of the bytes."""
    # Imported here: tests of pictures draw none as PNG.
    from PIL import Image

    Image.open(png).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(png, optimize=True)


if __name__ == "__main__":
    chosen = [path for path in paint_all(HERE) if sys.stdout.write(f"{path}\n") and path.stem in AS_PNG]
    if (chromium := shutil.which("chromium")) is not None:
        for path in chosen:
            reduce(png := rasterize(path, chromium, scale=2))
            sys.stdout.write(f"{png}\n")
