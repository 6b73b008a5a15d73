"""The process of an engine: started in the sandbox with a login or key, the tools of the team and a way to its API."""

import asyncio
import contextlib
import glob
import itertools
import os
import secrets
import stat
import sys
import urllib.parse
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crewboard import endpoint, engines, pricing
from crewboard.errors import BadDataError
from crewboard.records.agents import Tokens
from crewboard.sandbox.sandbox import Sandbox
from crewboard.sandbox.shell import Service
from crewboard.worker.acp import LONGEST_LINE, Engine, EngineError, Filled
from crewboard.worker.api_relay import LISTEN, ApiRelay
from crewboard.worker.run_state import RunState
from crewboard.worker.team_tools import TeamTools, find_declaration, offered_to, remove
from crewboard.worker.tools.plans import may_write

START_TIMEOUT = 120.0
"""Seconds that an engine may take until it has a session. Node reads 400 MB of code, perhaps from a cold disk."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MOST_STORED = 256 << 20
"""The most bytes that are read of one file of a stored session."""


@dataclass(frozen=True)
class Used:
    """The usage of an engine, as the engine or its API told it.

    `tokens` is None and `model` empty if they are not known. `cost_usd` is None if the cost is not known, as for a
    model without a price.
    """

    tokens: Tokens | None = None
    model: str = ""
    cost_usd: float | None = None

    @property
    def counted(self) -> Tokens:
        """Return the tokens; if they are not known, `Tokens` that count one untold usage."""
        return self.tokens or Tokens(untold=1)


class EngineProcess:
    """The engine of one agent, whose process is started again when it has ended or gets other rights."""

    def __init__(self, run_state: RunState, sandbox: Sandbox, environment: Mapping[str, str]) -> None:
        assert run_state.spec.engine is not None  # noqa: S101  the caller chose by it
        self._run_state = run_state
        self._sandbox = sandbox
        known = self.known = engines.known(run_state.spec.engine.name)
        given = run_state.spec.engine.command
        self._command = given or engines.choose(self.known.name, run_state.team.root).command
        self._environment = environment
        theirs = {name: environment[name] for name in known.variables if name in environment}
        self._variables = {**known.set_variables, **theirs}
        self._keys = {name: environment[name] for name in known.keys if environment.get(name)}
        self._service: Service | None = None
        self.engine: Engine | None = None
        self._tools: TeamTools | None = None
        self._relay: ApiRelay | None = None
        self.declaration: Path | None = None
        """A file that may declare an MCP server with the name of ours, whose calls would look like ours; else None."""
        self._writes = False
        self.asks = itertools.count(1)
        """The numbers of the requests for permission that engines make in this run."""
        self.filled = Filled(0, 0)
        self._counted_usd = 0.0
        """How much of the cost that the process has told, in USD, is counted already."""

    @property
    def has_ended(self) -> bool:
        """Return True if the process of the engine was started and has ended by itself."""
        return self._service is not None and self._service.ending is not None

    @property
    def fits(self) -> bool:
        """Return True if the engine has the rights to write that it would get if it started now."""
        return self._writes == self._may_write

    @property
    def _may_write(self) -> bool:
        """Return True if an engine that starts now may write. One without tools of its own never may: ours write."""
        return self._run_state.spec.has_own_tools and may_write(self._run_state)

    async def start(self) -> tuple[Engine, TeamTools]:
        """Start the engine, and return the connection to it and the server of the team's tools for it.

        Raises:
            EngineError: The address of its API cannot be used.
            OSError: The process cannot be started.
            TimeoutError: The process did not pass its socket for the relay in time.
        """
        self._writes, self.filled, self._counted_usd = self._may_write, Filled(0, 0), 0.0
        home = Path(os.path.realpath(self._run_state.agent.path)) / self._run_state.agent.engine_home.name
        home.mkdir(mode=0o700, exist_ok=True)
        variables, sandbox = self._prepare(home)
        if self._run_state.spec.has_own_tools:
            # One without them reads no such file.
            own = variables.get(self.known.folder_variable)
            self.declaration = find_declaration(
                Path(os.path.realpath(self._run_state.workspace)),
                Path(variables.get("HOME") or Path.home()).resolve(), Path(own).resolve() if own else None,
            )  # fmt: skip
        command = self._command
        if self._relay is not None:
            names = [name for name, value in variables.items() if "{port}" in value]
            command = [sys.executable, "-IS", "-c", LISTEN, ",".join(names), *command]
        service = self._service = Service(f"engine:{self.known.name}", command, variables, sandbox, set())
        if self._relay is not None:
            async with asyncio.timeout(START_TIMEOUT):
                await self._relay.listen(await service.receive())
        engine = self.engine = Engine(*await service.connect(LONGEST_LINE))
        tools = self._tools = TeamTools(home, engine.news.put_nowait, offered_to(self._run_state.spec))
        return engine, tools

    def _prepare(self, home: Path) -> tuple[dict[str, str], Sandbox]:
        """Prepare a start of the engine with this home; return its environment variables, and its sandbox.

        In the home, make the file over which the user's login is laid, or remove a login if the engine gets a key. Set
        up the relay to its API, if it needs one: `{port}` in the variables stands for the relay's port.

        Raises:
            EngineError: The address of its API cannot be used.
        """
        known, policy = self.known, replace(self._sandbox.policy, writes=self._writes)
        if self._sandbox.level != "bubblewrap":
            # It runs with the user's rights, and in the user's home.
            name, environment = known.folder_variable, self._environment
            theirs = {name: environment[name]} if environment.get(name) else {}
            return {**self._variables, **self._keys, **theirs}, replace(self._sandbox, policy=policy)
        policy, variables = replace(policy, home=home), {**self._variables, "HOME": str(home)}
        login = known.login_of(Path.home(), self._environment)
        place = _make_place(home, f"{known.folder}/{known.login}") if known.login else home
        if self._keys and not (login is not None and known.prefers_login):
            # Codex keeps there what it takes for its key.
            place.unlink()
            variables |= self._redirect()
        elif login is not None:
            policy = replace(policy, login=(login, place))
        if known.hosts and not policy.network:
            if self._relay is None and self._variables.get(known.address):
                variables |= self._redirect()
            elif self._relay is None:
                self._relay = ApiRelay(known.api, {}, known.hosts, self._environment)
            # With a key the relay refuses all tunnels, at once: Codex looks up names at each start, and without a proxy
            # it waits ten seconds for an answer.
            variables |= dict.fromkeys(("HTTPS_PROXY", "https_proxy"), "http://127.0.0.1:{port}")
        return variables, replace(self._sandbox, policy=policy)

    def _redirect(self) -> dict[str, str]:
        """Set up a relay that puts the user's keys into requests; return the variables that lead the engine to it.

        In place of each key, the engine gets a stand-in, which is of no use elsewhere. Without a key, the relay passes
        requests on as they are to the address that the user gave, for a login there, and opens tunnels to the API.

        Raises:
            EngineError: The address of its API cannot be used.
        """
        known, environment = self.known, self._environment
        url = environment.get(known.address) or known.api
        if (problem := endpoint.url_problem(url)) is not None:
            raise EngineError(f"{known.address} {problem}")
        stand_ins = {name: f"crewboard-{secrets.token_hex(16)}" for name in self._keys}
        keys = {stand_ins[name]: key for name, key in self._keys.items()} or None
        self._relay = ApiRelay(url, keys, () if keys else known.hosts, environment)
        here = f"http://127.0.0.1:{{port}}{urllib.parse.urlsplit(url).path.rstrip('/')}"
        redirected = {name: text.replace("{url}", here) for name, text in known.redirected.items()}
        # With the network it may have the user's proxy, which would look for this on its own machine.
        exempt = ",".join(filter(None, ("127.0.0.1", environment.get("no_proxy") or environment.get("NO_PROXY"))))
        return stand_ins | redirected | dict.fromkeys(("NO_PROXY", "no_proxy"), exempt)

    def stored(self, session: str) -> str:
        """Return the whole lines of the files in which the engine stores this session, as text.

        It is empty if there are none, or for an engine that replays all of a session. The engine can write these
        files, so the text may be compared only, and never shown.
        """
        is_boxed, found = self._sandbox.level == "bubblewrap", b""
        theirs = self.known.users_folder(Path.home(), self._environment)
        folder = self._run_state.agent.engine_home / self.known.folder if is_boxed else theirs
        for path in folder.glob(self.known.stored.format(glob.escape(session))) if self.known.stored else ():
            with contextlib.suppress(OSError), os.fdopen(os.open(path, _READ), "rb") as file:
                if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    found += file.read(_MOST_STORED).rpartition(b"\n")[0]
        return found.decode("utf-8", "replace")

    def note_filled(self, filled: Filled) -> None:
        """Keep what the engine tells of its window and its cost; without a cost, the one before stays."""
        self.filled = replace(filled, cost_usd=filled.cost_usd or self.filled.cost_usd)

    def take_used(self, told: Tokens | None, *, unfinished: bool) -> Used:
        """Return the usage of the turn that ends: the tokens that the engine `told`, else those that the relay counted.

        `unfinished` counts replies in progress as well. What is returned here is not returned again.
        """
        counted = self._count(self._relay, unfinished=unfinished)
        cost = self.filled.cost_usd if self.known.tells_cost else None
        spent = max(0.0, cost - self._counted_usd) if cost is not None else counted.cost_usd
        self._counted_usd = cost if cost is not None else self._counted_usd
        return Used(told or counted.tokens, self.filled.model or counted.model, spent)

    def take_untold(self) -> Used:
        """Return the usage of a turn whose end the engine does not tell, as the relay counted it.

        Replies in progress are counted. What is returned here is not returned again.
        """
        counted = self._count(self._relay, unfinished=True)
        return replace(counted, model=self.filled.model or counted.model)

    def _count(self, relay: ApiRelay | None, *, unfinished: bool) -> Used:
        replies = relay.take_counted(unfinished=unfinished) if relay is not None else []
        if relay is None or not replies:
            return Used()
        tokens = sum((each.tokens or Tokens() for each in replies), Tokens())
        if not relay.needs_key:
            # What a login uses has no price of its own.
            return Used(tokens, replies[-1].model)
        try:
            prices = pricing.load(self._run_state.team.root)
            costs = [prices.cost(each.model, each.tokens or Tokens()) for each in replies]
        except BadDataError:
            costs = [None]
        told = [each for each in costs if each is not None]
        return Used(tokens, replies[-1].model, sum(told) if len(told) == len(costs) else None)

    async def last_words(self, seconds: float) -> tuple[str, str | None]:
        """Wait at most `seconds` for the end of the process; return its log, and how it ended.

        How it ended is None if the process still runs. Without a process, the log is empty and the other None.
        """
        if self._service is None:
            return "", None
        await self._service.wait(seconds)
        return self._service.log, self._service.ending

    async def end(self, owed: Collection["asyncio.Future[Any]"]) -> Used:
        """End the engine and all that it started, and wait until the futures of the answers that it `owed` are done.

        Return the usage that the relay counted and that was not returned before. Do nothing if no engine runs.
        """
        engine, self.engine = self.engine, None
        service, self._service = self._service, None
        tools, self._tools = self._tools, None
        relay, self._relay = self._relay, None
        # Before its streams close: an engine takes that for an answer, and asks its model once more.
        if service is not None:
            await service.end()
        if tools is not None:
            await tools.close()
        if engine is not None:
            await engine.close()
        await asyncio.gather(*owed, return_exceptions=True)
        if relay is not None:
            await relay.close()
        return self._count(relay, unfinished=False)


def _make_place(home: Path, below: str) -> Path:
    """Make the empty file over which the user's login is laid, at the path `below` the home, and return its path.

    It is not left to the sandbox, which would follow links that the engine may have made in its home.

    Raises:
        OSError: The file cannot be made.
    """
    *folders, name = Path(below).parts
    path = home
    for folder in folders:
        path /= folder
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            path.unlink()
        path.mkdir(mode=0o700, exist_ok=True)
    path /= name
    remove(path)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    return path
