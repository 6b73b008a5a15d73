"""The board under load: from an append to the terminal, keys during 10,000 messages, and a roster of thousands."""

import io
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pexpect
import psutil
import pyte
import pytest

from crewboard import OPERATOR
from crewboard.commands.context import Team
from crewboard.protocol import requests
from crewboard.records.base import JsonValue
from crewboard.store.layout import TeamDirectory
from tests.bench.baselines import KEY_APP, echo
from tests.bench.figures import Figures, median
from tests.bench.terminal import WAIT_TIMEOUT, rest, terminal
from tests.bench.test_screen import BETWEEN, BOARD, TOLERANCE
from tests.cli.files import alive, enlist, enlist_all, resting, set_doing
from tests.cli.shell import COMMAND, clean_environment
from tests.crew import eventually

pytestmark = [pytest.mark.bench, pytest.mark.long, pytest.mark.xdist_group("bench")]

CHANGES = 60
BOXES = 32
EACH = 313
"""Messages for each mailbox under load: ten thousand in all."""
STORM = 2.0
"""Seconds over which the load is spread."""
STEPS = 60
WARM = 7.0
"""Seconds after the first picture in which the other views are loaded."""
TICKS = 10.0
SWITCHES = 24
BUSY = 240
CHANGES_A_SECOND = 12

CHANGING = [*COMMAND, "board"]
NEEDS = 50
ANSWERED = 6
BLIND = 1.0
"""Seconds in which the keys of a page are dead, and more."""
ANSWERS = (
    ("d", "Why not?"),
    ("B", "Your question"),
    ("c", "LINE:TEXT"),
    ("o", "Terms"),
    ("e", "Edit, then"),
    ("a", "approved"),
)
"""The keys of a plan, each with what it shows."""

_STORM = """
import json, os, sys, time
boxes, each, seconds = sys.argv[3:], int(sys.argv[1]), float(sys.argv[2])
files = [os.open(box, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) for box in boxes]
began = time.monotonic()
for number in range(each):
    for at, file in enumerate(files):
        letter = {"v": 1, "id": f"{at}-{number}", "ts": time.time(), "from": "lead", "to": "all",
                  "type": "message", "content": f"letter {number}", "metadata": {}}
        os.write(file, json.dumps(letter).encode() + b"\\n")
    time.sleep(max(0, began + seconds * (number + 1) / each - time.monotonic()))
"""


@pytest.fixture
def team(tmp_path: Path) -> Team:
    """Make a team without agents."""
    return Team(TeamDirectory(tmp_path / ".crewboard" / "default")).ensure()


def crowd(team: Team, count: int, stack: ExitStack, state: str = "working") -> list[str]:
    """Make agents that look busy in their files, sorted as the roster sorts them; others rest since two days."""
    names = [f"agent{number:04}" for number in range(count)]
    since = time.time() - (0 if state == "working" else 2 * 86_400)
    process = stack.enter_context(resting())
    enlist_all(team, names, "explore", state=state, doing="thinking", since=since, **process)
    for name in names:
        stack.enter_context(alive(team, name))
    return names


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def walk(board: pexpect.spawn, names: list[str]) -> Iterator[float]:
    """Move down and up the roster; return the milliseconds from each key until the agent's name is painted."""
    board.expect_exact(peek(names[0]))
    there = [*names[1:], *reversed(names[:-1])]
    for at, name in enumerate(itertools.cycle(there)):
        began = time.perf_counter()
        board.send("j" if at % len(there) < len(names) - 1 else "k")
        board.expect_exact(peek(name))
        yield (time.perf_counter() - began) * 1e3


def peek(name: str) -> bytes:
    """Return the title above the activity of the selected agent."""
    return f"Peek · {name}".encode()


def slowest(took: list[float], percent: int = 95) -> float:
    """Return the time within which the given percentage came."""
    return statistics.quantiles(took, n=100)[percent - 1]


def key_ms(app: pexpect.spawn, number: int) -> float:
    """Return the milliseconds from a key until `KEY_APP` shows it."""
    began = time.perf_counter()
    app.send("j")
    app.expect_exact("ab"[(number + 1) % 2] * 20)
    return (time.perf_counter() - began) * 1e3


def add_keys(figures: Figures, board: list[float], app: list[float], where: str, target: float) -> None:
    """Add the figures of keys on the board, next to those of the smallest app."""
    baseline = ("a key in the smallest Textual app", median(app))
    figures.add(f"a key {where}, median", median(board), "ms", baseline)
    figures.add(f"a key {where}, 95 %", slowest(board), "ms", target=target)
    figures.add(f"a key {where}, slowest", max(board), "ms")


def walked(team: Team, names: list[str]) -> tuple[list[float], list[float]]:
    """Return the milliseconds of keys on the board and in the smallest app, pressed in turns."""
    took, bare = [], []
    folder, environment = team.directory.root, clean_environment()
    with terminal(KEY_APP, folder, environment) as app, terminal(BOARD, folder, environment) as board:
        app.expect_exact("pressed 0 times")
        for number, ms in enumerate(itertools.islice(walk(board, names), STEPS)):
            took.append(ms)
            bare.append(key_ms(app, number))
    return took, bare


def test_thirty_agents(figures: Figures, team: Team, stack: ExitStack) -> None:
    names = crowd(team, 30, stack)
    took = []
    with terminal(BOARD, team.directory.root, clean_environment()) as board:
        board.expect_exact(peek(names[0]))
        for number in range(CHANGES):
            time.sleep(BETWEEN)
            words = f"mark{number:04}"
            began = time.perf_counter()
            set_doing(team, names[number % 10], words, time.time())
            board.expect_exact(words)
            took.append((time.perf_counter() - began) * 1e3)
    figures.add("a change to the terminal, 30 agents, median", median(took), "ms", target=15)
    figures.add("a change to the terminal, 30 agents, 95 %", slowest(took), "ms", target=40)


def letter(ident: str, to: str) -> bytes:
    """Return the line of a message in a mailbox."""
    fields = {"v": 1, "id": ident, "ts": time.time(), "from": "lead", "to": to, "type": "message",
              "content": "hello", "metadata": {}}  # fmt: skip
    return json.dumps(fields).encode() + b"\n"


def appended_ms(box: int, name: str, number: int, screen: pexpect.spawn) -> float:
    """Return the milliseconds from a message in a mailbox to the first bytes on a screen that was at rest."""
    line = letter(f"{name}-{number}", name)
    began = time.perf_counter()
    os.write(box, line)
    screen.read_nonblocking(65536, timeout=WAIT_TIMEOUT)
    return (time.perf_counter() - began) * 1e3


def test_an_append_with_thirty_agents(figures: Figures, team: Team, stack: ExitStack, tmp_path: Path) -> None:
    names = crowd(team, 30, stack, "idle")
    plain, flags = tmp_path / "plain.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT
    boxes = [os.open(path, flags, 0o600) for path in (team.directory.inbox(names[0]).on_disk, plain)]
    folder, environment = team.directory.root, clean_environment()
    took, bare, keys = list[float](), list[float](), list[float]()
    app, echoed, board = (
        stack.enter_context(terminal(command, folder, environment)) for command in (KEY_APP, echo(plain), BOARD)
    )
    app.expect_exact("pressed 0 times")
    echoed.expect_exact("ready")
    board.expect_exact(peek(names[0]))
    rest(board, WARM)
    for number in range(CHANGES):
        took.append(appended_ms(boxes[0], names[0], number, board))
        bare.append(appended_ms(boxes[1], names[0], number, echoed))
        keys.append(key_ms(app, number))
        rest(board, BETWEEN)
        rest(echoed, 0.01)
    board.send("2")
    board.expect_exact(f"{CHANGES} unread")
    for box in boxes:
        os.close(box)
    baseline = ("inotify, read and write, 95 %", slowest(bare))
    key = ("a key in the smallest Textual app, rested alike", median(keys))
    figures.add("an append to the terminal, 30 agents, median", median(took), "ms", target=8)
    figures.add("an append to the terminal, 30 agents, median", median(took), "ms", key, target=5)
    figures.add("an append to the terminal, 30 agents, 95 %", slowest(took), "ms", target=40)
    figures.add("an append to the terminal, 30 agents, 95 %", slowest(took), "ms", baseline)


def test_keys_under_load(figures: Figures, team: Team, stack: ExitStack) -> None:
    names = crowd(team, BOXES, stack)
    boxes = [str(team.directory.inbox(name)) for name in names]
    with terminal(BOARD, team.directory.root, clean_environment(), rows=70) as board:
        board.logfile_read = painted = io.BytesIO()
        keys = walk(board, names)
        took = [next(keys)]
        with subprocess.Popen([sys.executable, "-I", "-c", _STORM, str(EACH), str(STORM), *boxes]) as storm:
            while storm.poll() is None:
                took.append(next(keys))

        def shown() -> int:
            """Return how many agents have all their messages as unread on the screen."""
            rest(board, 0.2)
            screen = pyte.Screen(100, 70)
            pyte.ByteStream(screen).feed(painted.getvalue())
            return sum(f" {EACH} " in row and "agent" in row for row in screen.display)

        eventually(lambda: shown() == BOXES, "every message on the board")
    figures.add(f"a key while {BOXES * EACH:,} messages arrive, median", median(took), "ms")
    figures.add(f"a key while {BOXES * EACH:,} messages arrive, slowest", max(took), "ms", target=60)


def answer_ms(board: pexpect.spawn) -> Iterator[tuple[str, float]]:
    """Open the next plan, press its answer keys, and approve it; return each with the milliseconds to its picture."""
    board.send("!")
    board.expect_exact("PLAN v1")
    for key, words in ANSWERS:
        rest(board, BLIND)
        began = time.perf_counter()
        board.send(key)
        board.expect_exact(words)
        yield key, (time.perf_counter() - began) * 1e3
        if key != "a":
            board.send("\x1b")


def test_answer_keys_with_fifty_needs(figures: Figures, team: Team, stack: ExitStack) -> None:
    for number, name in enumerate(crowd(team, NEEDS, stack, "waiting")):
        plan: JsonValue = f"# Plan {number}\n\n1. do it\n2. check it"
        requests.ask(team.directory, f"plan-{number}", "plan_approval", name, OPERATOR, {"plan": plan}, time.time())
    took, bare = dict[str, list[float]](), list[float]()
    folder, environment = team.directory.root, clean_environment()
    with terminal(KEY_APP, folder, environment) as app, terminal(CHANGING, folder, environment, rows=40) as board:
        app.expect_exact("pressed 0 times")
        board.expect_exact(f"{NEEDS} ask")
        rest(board, WARM)
        for _ in range(ANSWERED):
            for key, ms in answer_ms(board):
                took.setdefault(key, []).append(ms)
                bare.append(key_ms(app, len(bare)))
    # The first time, what a key shows is loaded.
    most = max(median(each[1:]) for each in took.values())
    slow = figures.add(
        f"the slowest answer key with {NEEDS} needs, median", most, "ms",
        ("a key in the smallest Textual app", median(bare)), target=25,
    )  # fmt: skip
    figures.add(f"the slowest answer key with {NEEDS} needs, median", most, "ms", target=60)
    figures.add(f"an answer key with {NEEDS} needs, slowest", max(itertools.chain(*took.values())), "ms")
    assert slow.within(TOLERANCE)


def switch_ms(board: pexpect.spawn) -> Iterator[float]:
    """Open the Inbox and the Board in turns; return the milliseconds from each key until its view is painted."""
    for key, words in itertools.cycle((("2", "Mailboxes"), ("1", "Peek"))):
        rest(board, BETWEEN)
        began = time.perf_counter()
        board.send(key)
        board.expect_exact(words)
        yield (time.perf_counter() - began) * 1e3


def cpu_ms(pid: int) -> float:
    """Return the processor time that a process has used."""
    used = psutil.Process(pid).cpu_times()
    return (used.user + used.system) * 1e3


def test_keys_that_open_views(figures: Figures, team: Team, stack: ExitStack, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    old = Team(TeamDirectory(tmp_path / "old" / ".crewboard" / "default")).ensure()
    names, _ = crowd(team, 30, stack, "idle"), crowd(old, 30, stack, "idle")
    boards = [stack.enter_context(terminal(BOARD, each.directory.root, clean_environment())) for each in (team, old)]
    app = stack.enter_context(terminal(KEY_APP, tmp_path, clean_environment()))
    app.expect_exact("pressed 0 times")
    for board in boards:
        board.expect_exact(peek(names[0]))
    for burst in range(3):
        with old.directory.inbox(OPERATOR).on_disk.open("ab") as box:
            box.writelines(letter(f"{burst}-{number}", OPERATOR) for number in range(10_000))
        for board in boards:
            rest(board, WARM / 2)
    keys, took, bare = [switch_ms(board) for board in boards], list[tuple[float, ...]](), list[float]()
    for each in keys:
        # The first time, a view is made.
        list(itertools.islice(each, 2))
    before = [cpu_ms(board.pid) for board in boards]
    for number in range(SWITCHES):
        took.append(tuple(next(each) for each in keys))
        bare.append(key_ms(app, number))
    used = [(cpu_ms(board.pid) - start) / SWITCHES for board, start in zip(boards, before, strict=True)]
    new_ms, old_ms = (median([each[at] for each in took]) for at in range(2))
    at_once = figures.add(
        "a key that opens a view, median", new_ms, "ms", ("a key in the smallest Textual app", median(bare)), target=25
    )
    figures.add("a key that opens a view, median", new_ms, "ms", target=50)
    figures.add("the same in a team with 30,000 messages, median", old_ms, "ms", target=50)
    after = figures.add(
        "the same in a team with 30,000 messages, median", old_ms, "ms", ("without messages", new_ms), target=1.5
    )
    figures.add("the same in a team with 30,000 messages, processor time", used[1], "ms", ("without messages", used[0]))
    assert at_once.within()
    assert after.within()


def test_a_busy_team(figures: Figures, team: Team, stack: ExitStack) -> None:
    names = crowd(team, 20, stack)
    with terminal(BOARD, team.directory.root, clean_environment(), rows=40) as board:
        board.expect_exact(peek(names[0]))
        rest(board, WARM)
        process, began = psutil.Process(board.pid), time.monotonic()
        before = process.cpu_times()
        for number in range(BUSY):
            set_doing(team, names[number % 20], f"step {number}", time.time())
            rest(board, 1 / CHANGES_A_SECOND)
        after = process.cpu_times()
    used = after.user + after.system - before.user - before.system
    figures.add("a board of 20 agents, 12 changes a second", used / (time.monotonic() - began) * 100, "% of a core")


def test_five_hundred_agents(figures: Figures, team: Team, stack: ExitStack) -> None:
    names = crowd(team, 500, stack)
    add_keys(figures, *walked(team, names), "on a roster of 500", 30)


@pytest.mark.timeout(900)
def test_two_thousand_agents(figures: Figures, team: Team, stack: ExitStack) -> None:
    names = crowd(team, 2000, stack)
    began = time.perf_counter()
    with terminal(BOARD, team.directory.root, clean_environment()) as board:
        board.expect_exact(peek(names[0]))
    figures.add("a dashboard of 2,000 agents to the first picture", (time.perf_counter() - began) * 1e3, "ms")
    add_keys(figures, *walked(team, names), "on a roster of 2,000", 60)


def test_ages_that_look_the_same_are_not_painted(figures: Figures, team: Team, stack: ExitStack) -> None:
    names = crowd(team, 29, stack, "idle")
    process = stack.enter_context(resting())
    enlist(team, "busy", "explore", state="working", doing="thinking", since=time.time(), **process)
    stack.enter_context(alive(team, "busy"))
    with terminal(BOARD, team.directory.root, clean_environment()) as board:
        board.expect_exact(names[0])
        rest(board, WARM)
        # The ticks of one row are measured.
        count = rest(board, TICKS) / TICKS
    figures.add("one of 30 ages ticks, to the terminal each second", count, "bytes", target=400)
