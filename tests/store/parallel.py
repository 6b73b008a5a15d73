"""Many real processes that do one thing at the same moment."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
"""Starts processes from one that has imported what they need."""
CONTEXT.set_forkserver_preload(
    [
        "crewboard.protocol.approvals",
        "crewboard.store.tasks",
        "crewboard.readmodel.changes",
        "crewboard_tui.cli.program",
    ]
    + [f"crewboard_tui.cli.{module}" for module in ("mail", "tasks", "status")]
)

Work = Callable[[Path, int], Any]
WAIT_TIMEOUT = 60.0


def _one(work: Work, path: Path, number: int, ready: Barrier, answers: Any) -> None:  # noqa: ANN401  untyped by its maker
    ready.wait(WAIT_TIMEOUT)
    try:
        answers.put((number, work(path, number)))
    except Exception as error:  # noqa: BLE001  it is told to the test
        answers.put((number, f"{type(error).__name__}: {error}"))


def together(work: Work, path: Path, count: int = 8) -> list[Any]:
    """Call `work(path, number)` in `count` processes at once; what each gave, in the order of their numbers."""
    ready, answers = CONTEXT.Barrier(count), CONTEXT.SimpleQueue()
    crowd = [CONTEXT.Process(target=_one, args=(work, path, number, ready, answers)) for number in range(count)]
    for process in crowd:
        process.start()
    given = dict(answers.get() for _ in crowd)
    for process in crowd:
        process.join(WAIT_TIMEOUT)
        process.close()
    return [given[number] for number in range(count)]


def _watch(look: Callable[[Path], str], path: Path, ready: Barrier, done: Event, answers: Any) -> None:  # noqa: ANN401
    complaints: set[str] = set()
    looks = 0
    ready.wait(WAIT_TIMEOUT)
    while not done.is_set():
        looks += 1
        if complaint := look(path):
            complaints.add(complaint)
    answers.put((looks, sorted(complaints)))


def together_watched(
    work: Work, look: Callable[[Path], str], path: Path, count: int = 8
) -> tuple[list[Any], int, list[str]]:
    """As `together`, while another process looks all the time; how often it looked, and what it complained of."""
    ready, done, answers = CONTEXT.Barrier(2), CONTEXT.Event(), CONTEXT.SimpleQueue()
    watcher = CONTEXT.Process(target=_watch, args=(look, path, ready, done, answers))
    watcher.start()
    ready.wait(WAIT_TIMEOUT)
    given = together(work, path, count)
    done.set()
    looks, complaints = answers.get()
    watcher.join(WAIT_TIMEOUT)
    watcher.close()
    return given, looks, complaints
