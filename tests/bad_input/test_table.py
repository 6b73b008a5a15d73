"""One test for each entry of the table, and tests that need a real process, pipe or socket."""

import asyncio
import os
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest

from crewboard.protocol.supervisor_client import ControlRequest
from crewboard.supervisor import __main__ as supervisor_main
from tests.bad_input.bench import Area, Bench, Entry
from tests.bad_input.table import TABLE
from tests.cli.shell import COMMAND, clean_environment
from tests.store.raw_mail import line


@pytest.mark.parametrize(
    "entry", TABLE, ids=lambda entry: f"{entry.area}-{re.sub(r'[^a-zA-Z0-9,.~/-]+', ' ', entry.given)}"
)
def test_bad_input(entry: Entry, tmp_path: Path) -> None:
    bench = Bench.make(tmp_path)
    try:
        entry.look(bench)
    finally:
        bench.end()


def test_the_table_is_long_enough_and_says_each_thing_once() -> None:
    assert len(TABLE) >= 60
    counts = Counter(entry.area for entry in TABLE)
    assert set(counts) == set(get_args(Area))
    assert min(counts.values()) >= 10
    assert max(Counter((entry.area, entry.given) for entry in TABLE).values()) == 1
    assert all(entry.does for entry in TABLE)


# ----------------------------------------------------------------------------------------------- real processes


def _run(bench: Bench, *arguments: str, **how: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*COMMAND, *arguments], cwd=bench.root, check=False, timeout=60, **how)


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    bench = Bench.make(tmp_path)
    for number in range(500):
        bench.receive(line(f"m{number}", "x" * 500))
    with subprocess.Popen(
        [*COMMAND, "inbox", "scout", "--all"],
        cwd=bench.root,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as ran:
        assert ran.stdout is not None
        assert ran.stderr is not None
        ran.stdout.readline()
        ran.stdout.close()
        assert ran.stderr.read() == b""
        assert ran.wait(60) == 0


def test_output_to_a_full_disk_exits_with_74(tmp_path: Path) -> None:
    bench = Bench.make(tmp_path)
    with Path("/dev/full").open("wb") as full:
        ran = _run(bench, "status", env=clean_environment(), stdout=full, stderr=subprocess.PIPE)
    assert ran.returncode == 74
    assert b"No space left" in ran.stderr
    assert b"Traceback" not in ran.stderr


def test_an_ascii_terminal_gets_replacement_characters(tmp_path: Path) -> None:
    bench = Bench.make(tmp_path)
    bench.receive(line("m", "naïve 🦊"))
    ran = _run(bench, "inbox", "scout", env=clean_environment(LC_ALL="POSIX", PYTHONUTF8="0"), capture_output=True)
    assert ran.returncode == 0
    assert b"Traceback" not in ran.stderr
    assert b"na" in ran.stdout


def test_a_removed_current_directory_is_one_sentence(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'cd "{gone}" && rmdir "{gone}" && exec "$@"'
    ran = subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND, "status"],
        env=clean_environment(),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 74
    assert ran.stderr.count(b"\n") == 1
    assert b"Traceback" not in ran.stderr


# ------------------------------------------------------------------------------------------------- the control server

BAD_REQUESTS = {
    "nothing": b"\n",
    "no JSON": b"wake wake\n",
    "binary": bytes(range(1, 10)) + b"\xff\xfe\n",
    "a number": b"17\n",
    "a list": b"[]\n",
    "deep": b"[" * 100_000 + b"\n",
    "an environment that is a list": b'{"verb": "start", "name": "scout", "run": 1, "environment": [1]}\n',
    "too long": b'{"verb": "' + b"x" * (5 * 1024 * 1024) + b'"}\n',
    "half a request": b'{"verb": "st',
}


@pytest.mark.parametrize("request_name", BAD_REQUESTS)
async def test_a_bad_control_request_is_ignored(request_name: str, tmp_path: Path) -> None:
    heard: list[ControlRequest] = []
    path = Path(f"/tmp/crewboard-test-{os.getpid()}.sock")
    server = await supervisor_main.listen(path, heard.append)
    try:
        async with asyncio.timeout(20):
            assert await _say(path, BAD_REQUESTS[request_name]) != b"ok\n"
            assert await _say(path, b'{"verb": "bell"}\n') == b"ok\n"
    finally:
        server.close()
        path.unlink(missing_ok=True)
    assert heard == [ControlRequest("wake")]


async def _say(path: Path, data: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        writer.write(data)
        await writer.drain()
        writer.write_eof()
        return await reader.read()
    except OSError:
        return b""
    finally:
        writer.close()
