"""`python -I -m crewboard.worker <agent directory>`: one run of one agent.

The process takes the lease, and exits at once if another process has or had the wanted run. Then it writes the journal
and the status, so that readers see the start. The imports that take a second come last.
"""

import asyncio
import contextlib
import gc
import os
import secrets
import signal
import sys
import traceback
from pathlib import Path
from typing import TextIO, cast

from crewboard import env, redaction
from crewboard.errors import CrewboardError, ExitCode, LostLeaseError, StorageError
from crewboard.records.agents import SANDBOX_OFF, Spec
from crewboard.records.events import RunStarted
from crewboard.records.processes import Lease
from crewboard.sandbox.level import UNSAFE_WARNING
from crewboard.sandbox.sandbox import Sandbox, harden, open_sandbox
from crewboard.store import agents, leases
from crewboard.store.interface import Held
from crewboard.store.layout import AgentDirectory
from crewboard.unix import process
from crewboard.worker.run_state import RunState

_REASONS = {ExitCode.IO: "storage", ExitCode.CREDENTIALS: "credentials", ExitCode.NO_SANDBOX: "no_sandbox"}


def _begin(agent: AgentDirectory) -> tuple[Spec, Held, Lease, bytes] | None:
    """Take and sign the lease for the wanted run. Return None if another process has that run, or had it.

    Else return the run's spec, the held lease, its record, and the bytes that `leases.sign` gave. SIGTERM is blocked
    until the lease is signed: in a database, an unsigned lease of a process that ended would be held until its time is
    up, because the supervisor frees only leases that their process signed.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        held = leases.take(agent.lease)
        if held is None:
            return None
        spec = agent.spec.load()
        if spec is None or agents.last_run(agent) >= spec.run:
            leases.release(held)
            return None
        me = os.getpid()
        lease = Lease(
            pid=me, run=spec.run, boot_id=process.boot_id(), start_ticks=process.start_ticks(me),
            host=env.host(),
        )  # fmt: skip
        signed = leases.sign(held, lease)
        return spec, held, lease, signed
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


async def _live(run_state: RunState, sandbox: Sandbox) -> None:
    """Work, by calls of the model or with an engine, until there is a reason to exit.

    Raises:
        WorkerExit: Always, unless an error ends the run; it holds the reason.
    """
    # Imported here because the SDK takes a second, and the lease and the status must show the start before that.
    from crewboard.worker.interrupts import Interrupts

    interrupts = Interrupts(run_state)
    interrupts.listen()
    environment = dict(os.environ)
    if run_state.spec.engine is not None:
        from crewboard.worker.engine import EngineLife

        engine = EngineLife(run_state, interrupts, sandbox, environment)
        run, close = engine.run, engine.close
    else:
        from crewboard.worker.llm.model import Model
        from crewboard.worker.loop import Loop
        from crewboard.worker.tools.base import FileToolClient

        loop = Loop(run_state, interrupts, Model(run_state, interrupts), FileToolClient(sandbox), environment)
        run, close = loop.run, loop.close
    env.forget_api_variables()
    try:
        await run()
    finally:
        # The loop takes its handler along. A signal then must not end the worker before it has recorded how it ended.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        await close()


def _run(run_state: RunState, before: int) -> tuple[int, str]:
    """Work until the run ends, and return its exit code and reason. `before` is the number of the run before it."""
    from crewboard.worker.interrupts import WorkerExit

    try:
        worktree = run_state.spec.worktree
        if worktree is not None and worktree.carried:
            # On a host: the checkout of the agent, as its work is now. Imported here because agents of teams without
            # hosts do not need it.
            from crewboard.worktrees import workspaces

            # A huge one takes minutes: the command that waits for this start need not.
            run_state.show("starting", "makes its checkout")
            try:
                workspaces.prepare(run_state.team, run_state.name, run_state.spec, before)
            except CrewboardError as error:
                error.args = (f"its checkout could not be made: {error}",)
                raise
        with open_sandbox(run_state.team, run_state.name, run_state.spec) as sandbox:
            run_state.set_sandbox(sandbox.description)
            if sandbox.description == SANDBOX_OFF:
                sys.stderr.write(f"{run_state.name}: {UNSAFE_WARNING}\n")
            asyncio.run(_live(run_state, sandbox))
    except WorkerExit as end:
        return end.code, end.reason
    except CrewboardError as error:
        sys.stderr.write(f"{run_state.name}: {error}\n")
        # Written by `finish`, so that the need of the death names the cause.
        run_state.note_error(str(error))
        return error.exit_code, _REASONS.get(error.exit_code, "failed")
    except Exception:  # noqa: BLE001  a bug: the log shows where, the exit code that
        traceback.print_exc()
        return ExitCode.INTERNAL, "internal"
    return ExitCode.INTERNAL, "internal"


def _end_at_once() -> None:
    """Kill this process and all that it started, and write nothing: another worker may soon have this agent."""
    for pid in process.descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(ExitCode.IO)


def main(path: Path) -> int:
    """Do one run of the agent whose directory is `path`, and return the exit code.

    Return 0 at once if another process has the wanted run, or had it.
    """
    agent = AgentDirectory.at(path)
    try:
        agent.team.require_adopted()
        begun = _begin(agent)
        if begun is None:
            return ExitCode.DONE
        spec, held, lease, signed = begun
        leases.fence(held, lease, signed, _end_at_once)
        harden()
        # No secret may get into the log.
        redaction.register_secrets(os.environ)
        sys.stderr = cast("TextIO", redaction.RedactedStream(sys.stderr))
        before = agents.last_run(agent)
        run_state = RunState(agent, spec)
        me = run_state.status
        # How the previous run ended, if its worker could not write that to the journal.
        ended = agent.exit.load_or_none()
        if ended is not None and ended.run == run_state.conversation.ended_run:
            ended = None
        run_state.append(
            RunStarted(
                ts=run_state.now(), pid=me.pid, type=spec.type, model=spec.model, fresh=run_state.fresh,
                prompt_id=spec.prompt_id, boot_id=me.boot_id, start_ticks=me.start_ticks,
                before=ended, flags=spec.flags, spec=spec.replace(prompt=""), fence_key=secrets.token_hex(16),
                offline=me.offline, **{"mail_from": spec.mail_from, **run_state.lost},
            )
        )  # fmt: skip
        run_state.show("starting")
        # The conversation stays for the whole run, so the collector need not look at it again.
        gc.freeze()
    except CrewboardError as error:
        sys.stderr.write(f"{agent.name}: {error}\n")
        return error.exit_code
    code, reason = _run(run_state, before)
    try:
        run_state.finish(code, reason)
    except LostLeaseError:
        # If the lease is still held, the directory was moved: the supervisor at the new place reads that it was lost.
        if not leases.has(held):
            with contextlib.suppress(StorageError):
                leases.sign(held, lease.replace(lost=True))
        return ExitCode.IO
    except StorageError as error:
        sys.stderr.write(f"{agent.name}: could not record how the run ended: {error}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
