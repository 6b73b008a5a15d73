"""A process with simulated workers: each does to the store, again and again, what a worker does for a call of a model.

`python -m tests.bench.simulated URL TEAM FIRST COUNT SECONDS` prints a line once all have their leases, begins when it
reads one, and prints as JSON how long the store took of each call, in milliseconds. As a worker, it ends if a lease is
lost.
"""

import json
import os
import random
import sys
import threading
import time

from crewboard.errors import ExitCode
from crewboard.store.interface import Key

INTERVAL = 10.0
"""Seconds from one call of a worker to the next."""

_EVENT = "x" * 1500
_STATUS = "x" * 1000


def _line(ident: str) -> bytes:
    return json.dumps({"id": ident, "text": _EVENT}).encode() + b"\n"


class Worker:
    """A simulated worker with connections of its own."""

    def __init__(self, url: str, team: str, number: int) -> None:
        from crewboard.store.postgres_store import PostgresStore

        self.store = PostgresStore(f"{url}&application_name=worker{number}", team)
        self.name = f"worker{number}"
        self.took: list[float] = []
        self.store.make_folder(f"agents/{self.name}")
        held = self.store.take(f"agents/{self.name}/lease")
        assert held is not None
        self.store.say(held, b"{}")
        self.store.fence(held, lambda: None, lambda: os._exit(ExitCode.IO))
        self._end = 0

    def call(self, number: int) -> None:
        """Do what was counted on real workers for two calls with a tool between them, halved."""
        store, folder = self.store, f"agents/{self.name}"
        for step in range(4):
            self._end = store.append(f"{folder}/journal.jsonl", _line(f"{number}.{step}"), at=self._end)
            if step < 3:
                store.put(f"{folder}/status.json", _STATUS.encode())
                Key(store, f"inbox/{self.name}.jsonl").size()
        store.put(f"{folder}/cursor.json", b"{}")
        store.append("inbox/operator.jsonl" if number % 2 else f"inbox/{self.name}.jsonl", _line(self.name))

    def work(self, seconds: float) -> None:
        """Make a call every `INTERVAL` seconds, the first after a random part of it."""
        began = time.monotonic()
        due, number = began + random.random() * INTERVAL, 0
        while due < began + seconds:
            time.sleep(max(0.0, due - time.monotonic()))
            at = time.perf_counter()
            self.call(number)
            self.took.append((time.perf_counter() - at) * 1e3)
            number, due = number + 1, due + INTERVAL


def main() -> None:
    url, team, first, count, seconds = sys.argv[1:]
    workers = [Worker(url, team, number) for number in range(int(first), int(first) + int(count))]
    print("ready", flush=True)
    sys.stdin.readline()
    threads = [threading.Thread(target=worker.work, args=(float(seconds),)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps([took for worker in workers for took in worker.took]), flush=True)


if __name__ == "__main__":
    main()
