"""Figures: each measured value next to a baseline of the same run, so that ratios hold on any machine."""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]

REPORT = ROOT / ".bench.json"
"""The file with the figures of the last run."""


@dataclass(frozen=True)
class Figure:
    """One measurement. `target` is the ratio, or with no baseline the value, that it should stay within.

    `base` is what the `baseline` measured, which may be 0; None if there is none. `more_is_better` turns the comparison
    around.
    """

    name: str
    value: float
    unit: str
    baseline: str = ""
    base: float | None = None
    target: float | None = None
    more_is_better: bool = False
    section: str = ""
    file: str = ""

    @property
    def ratio(self) -> float | None:
        return self.value / self.base if self.base else None

    @property
    def compared(self) -> float | None:
        """The value that is compared with the target; None if there is no ratio, because the baseline measured 0."""
        return self.value if self.base is None else self.ratio

    def within(self, tolerance: float = 1.0) -> bool:
        """Return True if the value is within `tolerance` times its target, or cannot be compared with it."""
        if self.target is None or self.compared is None:
            return True
        if self.more_is_better:
            return self.compared * tolerance >= self.target
        return self.compared <= self.target * tolerance

    def row(self) -> tuple[str, str, str, str, str, str]:
        """Return its cells: name, measured, baseline, the baseline's value, ratio, target."""
        sign = "≥" if self.more_is_better else "≤"
        target = (
            ""
            if self.target is None
            else f"{sign} {self.target:g}" + ("" if self.base is not None else f" {self.unit}")
        )
        return (
            self.name,
            f"{_number(self.value)} {self.unit}",
            self.baseline,
            "" if self.base is None else f"{_number(self.base)} {self.unit}",
            "" if self.ratio is None else f"{self.ratio:.3g}",
            target + ("" if self.within() else "  MISSED"),
        )


@dataclass
class Figures:
    """All figures of one run."""

    all: list[Figure] = field(default_factory=list)
    section: str = ""
    """The heading under which the next figures stand."""
    file: str = ""
    """The file whose tests measure the next figures."""
    load: float = field(default_factory=lambda: os.getloadavg()[0])
    """Processes that ran on the machine on average in the minute before the run."""

    def add(
        self,
        name: str,
        value: float,
        unit: str,
        against: tuple[str, float | None] = ("", None),
        *,
        target: float | None = None,
        more_is_better: bool = False,
    ) -> Figure:
        figure = Figure(name, value, unit, *against, target, more_is_better, self.section, self.file)
        self.all.append(figure)
        return figure

    def table(self) -> list[str]:
        """Return the figures as text, one per line."""
        rows = [("figure", "measured", "baseline", "", "ratio", "target")]
        rows += [figure.row() for figure in self.all]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return ["  ".join(_cell(*cell) for cell in zip(row, widths, range(6), strict=True)).rstrip() for row in rows]

    def save(self, path: Path = REPORT) -> None:
        figures = [{**asdict(figure), "ratio": figure.ratio, "met": figure.within()} for figure in self.all]
        path.write_text(
            json.dumps({"at": time.time(), "machine": machine(self.load), "figures": figures}, indent=1) + "\n"
        )


def machine(load: float) -> dict[str, Any]:
    """Describe the machine: kind, processor, cores, memory, kernel, Python, load, and its commit of this repository."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    told = dict(line.split("\t: ", 1) for line in lines if "\t: " in line)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {
        "commit": commit.stdout.strip(),
        "kind": "a virtual machine" if any("hypervisor" in line.split() for line in lines) else "a machine",
        "load": f"{load:.1f}",
        "processor": told.get("model name", platform.machine()),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def _number(value: float) -> str:
    # What is less than 0.1 was counted in few ticks: 0.0999 says no more than 0.1.
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.1 else f"{value:.2g}"


def _cell(text: str, width: int, column: int) -> str:
    return text.rjust(width) if column in (1, 3, 4) else text.ljust(width)


def median_ms(action: Callable[[], object], times: int) -> float:
    """Return the median duration of `times` runs in milliseconds."""
    return statistics.median(_ms(action) for _ in range(times))


def _ms(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1e3


def cpu_ms(commands: Sequence[Sequence[str]], times: int, **how: Any) -> list[float]:
    """Return the median processor time of each command, in milliseconds.

    The commands take turns, so that other work on the machine slows all of them alike.
    """
    turns = [[_cpu_ms(command, **how) for command in commands] for _ in range(times)]
    return [statistics.median(column) for column in zip(*turns, strict=True)]


def _cpu_ms(command: Sequence[str], **how: Any) -> float:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, **how)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return (used.ru_utime + used.ru_stime) * 1e3


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def python(code: str) -> list[str]:
    """Return the command that runs `code` in a new interpreter, as workers are run."""
    return [sys.executable, "-I", "-c", code]
