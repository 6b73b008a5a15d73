"""Programs that answer an agent for a whole run: their variables stay in the sandbox, and they end with it."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from crewboard.readmodel.processes import process_tree
from crewboard.sandbox.level import find
from crewboard.sandbox.policy import Policy
from crewboard.sandbox.sandbox import Sandbox, command_of
from crewboard.sandbox.shell import Service
from crewboard.unix import process
from tests.crew import eventually
from tests.sandbox.conftest import adopting_orphans
from tests.sandbox.test_shell import long_sleep


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    root, scratch = tmp_path / "root", tmp_path / "scratch"
    root.mkdir()
    scratch.mkdir()
    policy = Policy(root.resolve(), writes=True, scratch=scratch.resolve())
    with adopting_orphans():
        yield Sandbox(find(policy, os.environ).level, policy, root)


async def test_a_service_answers_and_ends(sandbox: Sandbox) -> None:
    service = Service(
        "mcp:echo",
        ["bash", "-c", 'echo log >&2; while read line; do echo "$line $VALUE"; done'],
        {"VALUE": 'a "b" $c'},
        sandbox,
        set(),
    )
    ended = asyncio.Event()
    service.when_ended(ended.set)
    reader, writer = await service.connect(1000)
    writer.write(b"said\n")
    assert await reader.readline() == b'said a "b" $c\n'
    writer.close()
    await ended.wait()
    assert service.ending == "[exit code 0]"
    assert service.log == "log\n"
    await service.end()


async def test_variables_of_a_service_do_not_reach_what_makes_the_sandbox(sandbox: Sandbox) -> None:
    before = set(process.descendants(os.getpid()))
    variables = {"LD_PRELOAD": "/nonexistent/evil.so", "SECRET": "hidden value"}
    service = Service("mcp:echo", ["bash", "-c", "echo $LD_PRELOAD 2>/dev/null; read line"], variables, sandbox, set())
    reader, writer = await service.connect(1000)
    assert await reader.readline() == b"/nonexistent/evil.so\n"
    family = set(process.descendants(os.getpid())) - before
    commands = [" ".join(process.arguments(pid) or []) for pid in family]
    shown = [command_of(process.arguments(pid) or []) or "" for pid in family]
    assert any(text.startswith("mcp:echo: bash -c") for text in shown) or sandbox.level != "bubblewrap"
    assert not any("hidden value" in command for command in commands)
    outside = [pid for pid in family if (process.arguments(pid) or [""])[0].endswith("bwrap")]
    for pid in outside:
        assert b"LD_PRELOAD" not in Path(f"/proc/{pid}/environ").read_bytes()
    writer.close()
    await service.end()
    assert not any(process.start_ticks(pid) for pid in family), "nothing of it is left"


def test_processes_show_a_program_without_the_sandbox(sandbox: Sandbox) -> None:
    before, mark = set(process.descendants(os.getpid())), long_sleep()
    read_end, write_end = os.pipe()
    child = sandbox.start_program(["/bin/sleep", mark], write_end, write_end)
    try:

        def shows_it_alone() -> bool:
            shown = [each.command for each in process_tree(os.getpid()) if each.pid not in before]
            is_around = any("--unshare-user" in command or "mapfile" in command for command in shown)
            return not is_around and any(mark in command for command in shown)

        # The sandbox shows while it starts, before it has become what stands around the program.
        eventually(shows_it_alone, "the program among the processes, without the sandbox")
    finally:
        os.kill(child.pid, signal.SIGKILL)
        eventually(lambda: not child.alive, "the end of the program")
        os.close(read_end)
        os.close(write_end)


async def test_a_service_that_is_ended_while_it_starts_leaves_nothing(sandbox: Sandbox) -> None:
    before = set(process.descendants(os.getpid()))

    def left() -> set[int]:
        """Return the processes below this one but for those that were there before: workers of other tests among them.

        What these start is not counted either.
        """
        now = process.parents()
        theirs = {below for pid in before for below in process.descendants(pid, now)}
        return set(process.descendants(os.getpid(), now)) - before - theirs

    for number in range(20):
        service = Service("mcp:echo", ["bash", "-c", "read line"], {}, sandbox, set())
        # At another step of its start each time.
        await asyncio.sleep(number / 2000)
        await service.end()
        assert not left()


async def test_a_service_that_cannot_start_says_why(sandbox: Sandbox) -> None:
    service = Service("mcp:none", ["no-such-program"], {}, sandbox, set())
    ended = asyncio.Event()
    service.when_ended(ended.set)
    reader, writer = await service.connect(1000)
    assert await reader.readline() == b""
    writer.close()
    await ended.wait()
    assert service.ending == "[exit code 127]"
    assert "no-such-program: not found" in service.log
    assert "line 1" not in service.log
    await service.end()
