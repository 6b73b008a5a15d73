"""Recorded files of Claude Code, written again into a temporary configuration directory, with processes of this test.

The recordings are our own measurements with the real program: what its files held, at which second.
"""

import json
import shutil
import subprocess
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crewboard.attach import formats, teams
from crewboard.store.layout import TeamDirectory
from crewboard.unix import process as unix_process

RECORDED = Path(__file__).with_name("recorded")
TIMELINES = sorted(path.stem for path in RECORDED.glob("*.jsonl"))

_RECORDED_SESSION = "6b7a9ec1"


@dataclass
class Change:
    """A file after a change; `content` is None if it was removed."""

    path: str
    content: object


@dataclass
class Replay:
    """A configuration directory in which recordings are played. `pid` stands for the lead's process."""

    config: Path
    pid: int
    letters: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The marks of all letters that were in an inbox, by recipient."""

    session: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    """The begin of the lead's session id in the copied recording of panes.

    Each replay has its own: teammates are found by their arguments among all processes of the machine, and other tests
    play the same recording at the same time.
    """

    @property
    def ticks(self) -> int:
        return unix_process.start_ticks(self.pid)

    def play(self, timeline: str) -> Iterator[Change]:
        """Make each change of a timeline, and yield it."""
        for line in (RECORDED / f"{timeline}.jsonl").read_text().splitlines():
            _, path, content = json.loads(line)
            yield self.make(path, content)

    def make(self, path: str, content: object) -> Change:
        target = self.config / path
        if content is None:
            if target.name == "config.json":
                shutil.rmtree(target.parent)
            elif target.is_file():
                target.unlink()
            return Change(path, None)
        content = self._with_process(path, content)
        if "/inboxes/" in path:
            self.letters[target.stem] |= {each.mark for each in formats.inbox(json.dumps(content).encode()) or ()}
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(content))
        return Change(path, content)

    def _with_process(self, path: str, content: Any) -> Any:  # noqa: ANN401  any JSON value
        if path.startswith("sessions/"):
            return {**content, "pid": self.pid, "procStart": str(self.ticks)}
        if isinstance(content, dict) and "leadProcess" in content:
            process = {**content["leadProcess"], "pid": self.pid, "procStart": str(self.ticks)}
            return {**content, "leadProcess": process}
        return content

    def copy(self, recording: str) -> None:
        """Write all files of a recording as they were at its end."""
        source = RECORDED / recording
        for path in sorted(path for path in source.rglob("*") if path.is_file()):
            target = self.config / str(path.relative_to(source)).replace(_RECORDED_SESSION, self.session)
            target.parent.mkdir(parents=True, exist_ok=True)
            content = path.read_text().replace(_RECORDED_SESSION, self.session)
            if path.suffix == ".json" and "projects" not in path.parts:
                content = json.dumps(self._with_process(str(path.relative_to(source)), json.loads(content)))
            target.write_text(content)

    def attach(self, root: Path) -> TeamDirectory:
        """Attach to the only team."""
        (found,) = teams.find_teams(self.config)
        return teams.attach(root, found, 1_795_322_000)


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that stands for one of Claude Code. It is killed at the end, also of a failed test."""
    with subprocess.Popen(command or ("sleep", "600")) as started:
        try:
            yield started
        finally:
            started.kill()


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return every file below a folder, with its contents and its time of change."""
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}
