"""Baselines of the figures: the least that the same thing costs without crewboard."""

import subprocess
import time
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import psutil

from tests.bench.figures import median_ms, python

_IMPORTED = "import anthropic, sys; sys.stdout.write('x'); sys.stdout.flush(); sys.stdin.read()"

_APP = """
from textual.app import App
from textual.widgets import Static
class Empty(App):
    def compose(self): yield Static("nothing here")
Empty().run()
"""

_KEYS = """
from textual.app import App
from textual.widgets import Static
class Keys(App):
    pressed = 0
    def compose(self): yield Static("pressed 0 times")
    def on_key(self):
        self.pressed += 1
        self.query_one(Static).update("ab"[self.pressed % 2] * 20)
Keys().run()
"""

_ECHO = """
import ctypes, os, sys
path = sys.argv[1]
libc = ctypes.CDLL(None)
events = libc.inotify_init1(0)
file = os.open(path, os.O_RDONLY | os.O_CREAT, 0o600)
libc.inotify_add_watch(events, path.encode(), 2)
os.write(1, b"ready")
while os.read(events, 4096):
    os.write(1, os.read(file, 65536))
"""

_WAKER = """
import select, sys
sys.stdout.write("x")
sys.stdout.flush()
while True:
    select.poll().poll(float(sys.argv[1]) * 1e3)
"""

EMPTY_APP = python(_APP)
KEY_APP = python(_KEYS)
"""A Textual app whose one line changes with each key."""


def echo(path: Path) -> list[str]:
    """Return the command that writes to the terminal what is appended to a file, and `ready` at the start."""
    return [*python(_ECHO), str(path)]


EMPTY_WORDS = "nothing here"


@cache
def import_ms() -> float:
    """Measure starting Python and importing the SDK."""
    return median_ms(lambda: subprocess.run(python("import anthropic"), check=True), 7)


@cache
def import_mib() -> float:
    """Measure the private memory of a process that imported the SDK and does nothing."""
    with subprocess.Popen(python(_IMPORTED), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read(1)
        mib = private_mib(child.pid)
        child.communicate()
    return mib


def private_mib(pid: int) -> float:
    """Return the memory that would be free if the process ended."""
    return float(psutil.Process(pid).memory_full_info().uss) / 2**20


def family(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def waking_percent(processes: int, every: float, seconds: float) -> float:
    """Measure what processes take, in percent of a core, that do nothing but wake up every so many seconds.

    On a virtual machine that rests, a wake costs several times as much as on one that works.
    """
    with ExitStack() as stack:
        pids = []
        for _ in range(processes):
            child = stack.enter_context(subprocess.Popen([*python(_WAKER), str(every)], stdout=subprocess.PIPE))
            stack.callback(child.kill)
            assert child.stdout is not None
            child.stdout.read(1)
            pids.append(child.pid)
        time.sleep(every / 2)
        before, began = cpu_seconds(pids), time.monotonic()
        # The rest itself is measured.
        time.sleep(seconds)
        return (cpu_seconds(pids) - before) / (time.monotonic() - began) * 100


def python_ms(imports: str) -> float:
    """Measure starting Python with some imports."""
    return median_ms(lambda: subprocess.run(python(imports), check=True), 15)


def cpu_seconds(pids: list[int]) -> float:
    """Return the processor time that processes have used since they started."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(each.user + each.system for each in times)
