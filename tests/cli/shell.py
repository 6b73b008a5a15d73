"""The command line as a shell runs it: a real process of `crewboard` in a directory."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from crewboard import env, redaction
from crewboard.store.json_records import cached_folder
from crewboard_tui.cli import program

COMMAND = [sys.executable, "-I", "-m", "crewboard_tui.cli"]


def clean_environment(**more: str) -> dict[str, str]:
    """Return the environment of the tests without keys and without settings of crewboard, but in the same variant."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not redaction.is_secret(key) and not key.startswith(("CREWBOARD_", "PYTHON")) and key != "COLUMNS"
    }
    # What a supervisor is forked from has loaded the functions of that variant.
    variant = {key: value for key, value in os.environ.items() if key == env.PLATFORM}
    return {**kept, **variant, **more}


@dataclass(frozen=True)
class Ran:
    """The result of one command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:  # noqa: ANN401  whatever the command printed
        assert self.code == 0, self.err
        return json.loads(self.out)

    def refused(self, code: int, *words: str) -> None:
        """Check that it ended with `code` and one sentence with all of `words`, and printed nothing else."""
        assert self.code == code, (self.out, self.err)
        assert self.out == ""
        assert "Traceback" not in self.err
        assert self.err.count("\n") == 1, self.err
        for word in words:
            assert word in self.err


@dataclass(frozen=True)
class Cli:
    """Run commands in `root`."""

    root: Path
    environment: Mapping[str, str] = field(default_factory=clean_environment)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    python: str = sys.executable

    def __call__(self, *arguments: str, stdin: bytes = b"", seconds: float = 60) -> Ran:
        done = subprocess.run(
            [self.python, *COMMAND[1:], *arguments],
            cwd=self.root,
            env=dict(self.environment),
            input=stdin,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    def agree(self, *arguments: str, **options: Any) -> Ran:
        """Run a command that needs a yes, with the SHA-256 that its refusal names."""
        ran = self(*arguments, **options)
        named = re.search(r"--sha256 ([0-9a-f]{16})", ran.err)
        return ran if named is None else self(*arguments, "--sha256", named[1], **options)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command that keeps running; end it with `finish`, or let the fixture end it."""
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=self.root,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        """End all commands that still run."""
        for process in self.started:
            if process.poll() is None:
                finish(process, signal.SIGTERM)

    def with_environment(self, **more: str) -> "Cli":
        return replace(self, environment={**self.environment, **more})


class Inside(Cli):
    """Run commands in the process of the tests: faster, for commands that end by themselves and print little."""

    def __call__(self, *arguments: str, stdin: bytes = b"", seconds: float = 60) -> Ran:
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        environment = {"COLUMNS": "80", **self.environment}
        # A new process would not know what the command before has read.
        cached_folder.cache_clear()
        with (
            contextlib.chdir(self.root),
            mock.patch.dict(os.environ, environment, clear=True),
            mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin))),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = program.run(arguments)
        return Ran(code, *(_written(stream) for stream in (out, err)))


def _written(stream: io.TextIOWrapper) -> str:
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode()


def finish(process: subprocess.Popen[bytes], number: int | None = None, seconds: float = 30) -> Ran:
    """Send a command the signal `number`, if given, and wait for its end."""
    if number is not None:
        process.send_signal(number)
    out, err = process.communicate(timeout=seconds)
    return Ran(process.returncode, out.decode(), err.decode())
