"""Helpers to run one function in many real processes at the same moment."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
"""Starts processes by forking one that has imported everything they need."""
CONTEXT.set_forkserver_preload(
    [
        "crewboard.protocol.requests",
        "crewboard.store.tasks",
        "crewboard.readmodel.changes",
        "crewboard_tui.cli.program",
        # The modules of tests import it.
        "pytest",
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
    """Call `work(path, number)` in `count` processes at once; return the results in the order of the numbers."""
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
    """Run `together` while another process reads all the time; return its reads and the errors that it found."""
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
