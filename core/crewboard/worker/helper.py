"""The worker's end of `hands`: starts it, asks it, and ends it when it hangs."""

import asyncio
import contextlib
import json
import sys
from typing import Any

from crewboard.store.directory import AgentDirectory
from crewboard.worker.environment import tool_environment
from crewboard.worker.outcome import Outcome

CALL_WITHIN = 20.0
"""Seconds that one file tool may take before its helper is ended."""

_LONGEST_ANSWER = 4 * 1024 * 1024


class Helper:
    """One `hands` process, started when first needed."""

    def __init__(self, agent: AgentDirectory) -> None:
        self._agent = agent
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The helper's process, if one lives."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def ask(self, name: str, arguments: dict[str, Any]) -> Outcome:
        """Have a file tool run."""
        process = await self._living()
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("hands was started without pipes")
        try:
            async with asyncio.timeout(CALL_WITHIN):
                process.stdin.write(json.dumps({"name": name, "input": arguments}).encode() + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
        except TimeoutError:
            await self.end()
            return Outcome(f"{name} took longer than {CALL_WITHIN:.0f} s and was ended", is_error=True)
        except asyncio.CancelledError:
            await self.end()
            raise
        except (OSError, ValueError):
            line = b""
        if not line:
            await self.end()
            return Outcome(f"{name} failed: its helper process ended", is_error=True)
        reply = json.loads(line)
        return Outcome(reply["content"], is_error=reply["is_error"])

    async def _living(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            team = self._agent.team
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-m", "crewboard.worker.hands", str(team.root), str(team.results),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                cwd=team.root,
                env=tool_environment(),
                limit=_LONGEST_ANSWER,
                start_new_session=True,
            )  # fmt: skip
        return self._process

    async def end(self) -> None:
        """End the helper; the next call starts another."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
