"""Throughput of mail, tasks and requests next to bare system calls, and the messages that a naive mailbox loses."""

import json
import threading
import time
from pathlib import Path

import pytest

from crewboard.protocol import requests
from crewboard.store import mailbox, tasks
from crewboard.store.layout import TeamDirectory
from tests.bench.acts import naive_drain
from tests.bench.figures import Figures, median_ms
from tests.bench.parallel import rate

pytestmark = [pytest.mark.bench, pytest.mark.long, pytest.mark.xdist_group("bench")]

CROWD = 8
TOLERANCE = 2.0


@pytest.mark.parametrize("durable", [False, True])
def test_sends(figures: Figures, directory: TeamDirectory, tmp_path: Path, durable: bool) -> None:
    times = 250 if durable else 2000
    raw, _ = rate("raw", CROWD, times, tmp_path / "raw", durable)
    ours, sent = rate("send", CROWD, times, directory.path, durable)
    kept = len(mailbox.read(directory, "sink").messages)
    assert kept == sent == CROWD * times
    name = "with fsync" if durable else "without fsync"
    figure = figures.add(
        f"sends from {CROWD} processes, {name}", ours, "/s", (f"os.write, {name}", raw),
        target=0.15 if durable else 0.1, more_is_better=True,
    )  # fmt: skip
    assert figure.within(TOLERANCE)


def test_what_a_naive_mailbox_loses(figures: Figures, tmp_path: Path) -> None:
    box, kept = tmp_path / "box", tmp_path / "kept"
    box.touch()
    kept.touch()
    drain = naive_drain(str(box), str(kept), "0")
    done = threading.Event()

    def keep_draining() -> None:
        while not done.is_set():
            drain(0)
        drain(0)

    drainer = threading.Thread(target=keep_draining)
    drainer.start()
    _, sent = rate("naive", CROWD, 2000, box)
    done.set()
    drainer.join()
    lost = sent - sum(_is_whole(line) for line in kept.read_text().splitlines())
    figures.add("messages lost by a naive mailbox", lost / sent * 100, "%")


def _is_whole(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def test_mail_is_read_while_it_arrives_and_none_is_lost(figures: Figures, directory: TeamDirectory) -> None:
    seen: list[str] = []
    done = threading.Event()

    def drain() -> None:
        offset = 0
        while True:
            last = done.is_set()
            batch = mailbox.read(directory, "sink", offset)
            offset = batch.offset
            seen.extend(message.id for message in batch.messages)
            if last:
                return

    drainer = threading.Thread(target=drain)
    drainer.start()
    _, sent = rate("send", CROWD, 2000, directory.path, False)
    done.set()
    drainer.join()
    assert len(seen) == len(set(seen))
    figure = figures.add("messages lost by ours", (sent - len(seen)) / sent * 100, "%", target=0)
    assert figure.value == 0


def test_drain(figures: Figures, directory: TeamDirectory) -> None:
    rate("send", 4, 5000, directory.path, False)
    began = time.perf_counter()
    count = sum(1 for line in directory.inbox("sink").on_disk.read_bytes().splitlines() if json.loads(line))
    bare = count / (time.perf_counter() - began)
    began = time.perf_counter()
    read = len(mailbox.read(directory, "sink").messages)
    ours = read / (time.perf_counter() - began)
    assert read == count == 20000
    figure = figures.add(
        "messages drained", ours, "/s", ("json.loads of each line", bare), target=0.15, more_is_better=True
    )
    assert figure.within(TOLERANCE)


def test_claims(figures: Figures, directory: TeamDirectory, tmp_path: Path) -> None:
    count = 200
    for _ in range(count):
        tasks.add(directory, "a task", now=1.0)
    replaced, _ = rate("replace", CROWD, count, tmp_path)
    ours, won = rate("claim", CROWD, count, directory.path)
    assert won == count
    figures.add(
        f"claims tried by {CROWD}, {count} tasks",
        ours,
        "/s",
        ("write and os.replace", replaced),
        more_is_better=True,
    )


def test_decisions(figures: Figures, directory: TeamDirectory, tmp_path: Path) -> None:
    count = 200
    for number in range(count):
        requests.ask(directory, f"r{number}", "question", "scout", "operator", {"question": "?"}, 1.0)
    replaced, _ = rate("replace", CROWD, count, tmp_path)
    ours, won = rate("decide", CROWD, count, directory.path)
    assert won == count
    figures.add(
        f"answers tried by {CROWD}, {count} requests",
        ours,
        "/s",
        ("write and os.replace", replaced),
        more_is_better=True,
    )


def test_a_board_of_a_thousand_tasks(figures: Figures, directory: TeamDirectory, tmp_path: Path) -> None:
    """The cost of one step with a thousand tasks, next to the same with a hundred."""
    small, large = _steps(directory, 100), _steps(directory, 1000)
    for name, cost in large.items():
        # Listing is linear, so ten times as long is the least that a step may take that looks at all tasks.
        figure = figures.add(f"{name}, 1,000 tasks", cost, "ms", ("the same, 100 tasks", small[name]), target=10)
        assert figure.within(TOLERANCE)


def _steps(directory: TeamDirectory, count: int) -> dict[str, float]:
    """Fill the board up to `count` tasks; return the milliseconds of each kind of step."""
    for number in range(len(tasks.ids(directory)) + 1, count - 20):
        tasks.add(directory, f"task {number}", now=1.0)
    added = iter(range(100))
    found = {"a task added": median_ms(lambda: tasks.add(directory, f"task {next(added)}", now=1.0), 20)}
    free = iter([task.id for task in tasks.load_all(directory) if task.status == "pending"])
    claimed: list[int] = []

    def claim() -> None:
        claimed.append(next(free))
        tasks.claim(directory, claimed[-1], f"agent{claimed[-1]}", "explore", 1.0)

    found["a task claimed"] = median_ms(claim, 20)
    found["all tasks listed"] = median_ms(lambda: tasks.load_all(directory), 20)
    done = iter(claimed)

    def complete() -> None:
        number = next(done)
        tasks.update(directory, number, f"agent{number}", 1.0, status="completed")

    found["a task completed"] = median_ms(complete, 20)
    return found
