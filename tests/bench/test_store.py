"""Throughput of mail, tasks and requests next to bare system calls, and the messages that a naive mailbox loses."""

import json
import threading
import time
from pathlib import Path

import pytest

from crewboard.protocol import approvals
from crewboard.store import mailbox, tasks
from crewboard.store.layout import TeamDirectory
from tests.bench.acts import naive_drain
from tests.bench.figures import Figures
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
    count = sum(1 for line in directory.inbox("sink").read_bytes().splitlines() if json.loads(line))
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
        approvals.ask(directory, f"r{number}", "question", "scout", "operator", {"question": "?"}, 1.0)
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
