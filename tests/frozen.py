"""A team that does not change: the same files, clock, ids, pids and leases every time, for pictures and snapshots."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from crewboard.commands.context import Team
from crewboard.protocol import requests
from crewboard.readmodel.processes import KernelProbe, ProcessNode, Usage
from crewboard.records.agents import Context, Cursor, HireOptions, Spec, State, Status, Tokens
from crewboard.records.base import JsonValue
from crewboard.records.events import Answer, Intake, Reply, RunStarted, ToolResult, ToolStart
from crewboard.records.processes import Exit, Host, Supervisor
from crewboard.records.requests import RequestType
from crewboard.records.team import Config, Member, Task, TaskStatus
from crewboard.store import agents, journal, mailbox, roster
from crewboard.store.interface import Key
from crewboard.store.layout import AgentDirectory, TeamDirectory

NOW = datetime(2026, 11, 20, 15, 4, 22, tzinfo=UTC).timestamp()

OLD = """\
def list_orders(page: int = 1) -> Page:
    rows = orders.offset((page - 1) * SIZE).limit(SIZE)
    return Page(rows, page)
"""
NEW = """\
def list_orders(after: str | None = None, page: int | None = None) -> Page:
    start = Cursor.decode(after) if after else Cursor.of_page(page)
    rows = orders.after(start).limit(SIZE + 1)
    return Page(rows[:SIZE], next=Cursor.encode(rows))
"""

PLAN = """\
# Rotate the JWT signing keys

Tokens are signed with one key that has been in use for **two years**. Sign with a new key and keep accepting the
old one until its last token has expired.

1. Add `keys/ring.py`: a `KeyRing` with the current and the previous key
2. `settings.py`: a list `JWT_KEYS`; `JWT_KEY` stays as an alias
3. `middleware/auth.py`: verify against the ring, sign with the current key
4. Migration 0042: the table `key_audit`
5. `tests/test_keyring.py`, nine cases; run the whole suite

## Not part of this

Refresh tokens keep their own key. The alias goes in 3.0.
"""


_CALL: dict[str, Any] = {"type": "tool_use", "id": "c", "name": "read_file", "input": {}}
"""A call at the end of a reply. What it did has events of its own."""


@dataclass
class FrozenProbe(KernelProbe):
    """A probe with fixed data in place of the kernel's."""

    held: dict[str, Usage] = field(default_factory=dict)
    supervisor_pid: int | None = 4380
    offline: bool = True
    gone: frozenset[int] = frozenset()
    hosts_up: frozenset[str] = frozenset()
    """The hosts that hold their leases."""
    shared: int | None = None
    families: dict[int, tuple[ProcessNode, ...]] = field(default_factory=dict)

    def boot_id(self) -> str:
        return "boot"

    def lives(self, worker: Status) -> bool:
        return worker.pid not in self.gone

    def is_stopped(self, worker: Status) -> bool:
        return False

    def sees(self, host: Host) -> bool:
        return host.boot_id == "boot"

    def is_held(self, lease: Key) -> bool:
        folder, _, name = lease.name.partition("/")
        if folder in ("agents", "hosts"):
            return name.partition("/")[0] in (self.held if folder == "agents" else self.hosts_up)
        return self.supervisor_pid is not None if lease.name == "supervisor.lock" else self.offline

    def supervisor(self, lease: Key) -> Supervisor | None:
        return Supervisor(pid=self.supervisor_pid) if self.supervisor_pid else None

    def measure(self, workers: dict[str, Status]) -> dict[str, Usage]:
        # A copy, because a test may end an agent meanwhile.
        held = dict(self.held)
        return {name: held[name] for name in workers if name in held}

    def shared_bytes(self, supervisor: int) -> int | None:
        return self.shared

    def process_tree(self, pid: int) -> tuple[ProcessNode, ...]:
        return self.families.get(pid, ())


@dataclass
class Frozen:
    """A team on disk and its probe."""

    directory: TeamDirectory
    probe: FrozenProbe = field(default_factory=FrozenProbe)

    @property
    def team(self) -> Team:
        """Return the team, for a dashboard or a command of the operator."""
        return Team(self.directory, environment={"CREWBOARD_OFFLINE": "1"}, now=lambda: NOW)

    def hire(
        self, name: str, kind: str, state: State, doing: str, *, ago: float, pid: int, role: str = "", cpu: float = 0,
        rss: int = 0, **more: Any,
    ) -> AgentDirectory:  # fmt: skip
        """Add a live agent, in a state for `ago` seconds."""
        agent = self._want(name, kind, role)
        self.probe.held[name] = Usage(cpu, rss * 1024 * 1024, 1 if cpu > 20 else 0)
        status = Status(
            run=1, pid=pid, state=state, since=NOW - ago, doing=doing, beat=NOW, model=_MODELS[kind], boot_id="boot",
            sandbox="bubblewrap",
        )  # fmt: skip
        agent.status.save(status.replace(**more))
        journal.append(
            agent.journal,
            RunStarted(ts=NOW - 900, run=1, pid=pid, type=kind, model=_MODELS[kind], fresh=True, prompt_id=f"p-{name}"),
        )
        if status.replace(**more).cost_usd:
            self._called(name, min(ago, 600), more["tokens"], more["cost_usd"])
        # Last, so that an open dashboard never sees an agent without its status.
        roster.put(self.directory, Member(name=name, type=kind, role=role, model=_MODELS[kind], added_at=NOW - 900))
        return agent

    def _called(self, name: str, ago: float, tokens: Tokens, cost: float) -> None:
        """Record the model calls, from the start of its run on, that used and cost so much together."""
        weights = [1 + (len(name) + 3 * number) % 5 for number in range(12)]
        for number, weight in enumerate(weights):
            part = weight / sum(weights)
            used = Tokens(*(int(part * count) for count in (tokens.input, tokens.output, tokens.cache_read)))
            ts = NOW - 890 + number * (890 - ago) / len(weights)
            reply = Reply(ts=ts, run=1, content=[_CALL], stop_reason="tool_use", usage=used, cost_usd=part * cost)
            journal.append(self.directory.agent(name).journal, reply)

    def gone(self, name: str, kind: str, record: Exit, pid: int, **more: Any) -> AgentDirectory:
        """Add an agent whose run has ended; if it had a `last_tool`, then while that ran."""
        agent = self.hire(name, kind, "working", more.get("last_tool", ""), ago=900, pid=pid, **more)
        del self.probe.held[name]
        agents.write_exit(agent, record)
        return agent

    def _want(self, name: str, kind: str, role: str) -> AgentDirectory:
        agent = self.directory.agent(name)
        spec = Spec(
            prompt=f"Be {name}", prompt_id=f"p-{name}", type=kind, role=role, model=_MODELS[kind], flags=HireOptions(),
            at=NOW - 900,
        )  # fmt: skip
        agents.change_spec(agent, lambda _: spec)
        return agent

    def task(self, ident: int, subject: str, status: TaskStatus = "pending", **more: Any) -> None:
        """Add a task to the board."""
        fields: dict[str, object] = {"created_at": NOW - 900, "updated_at": NOW - 720, **more}
        self.directory.task(ident).save(Task(id=ident, subject=subject, status=status).replace(**fields))

    def mail(self, number: int, author: str, to: str, kind: str, text: str, ago: float, **metadata: JsonValue) -> str:
        """Put a message into a mailbox and return its id."""
        ident = f"m{number:04}"
        message = mailbox.compose(author, to, kind, text, ident=ident, ts=NOW - ago, metadata=metadata)
        mailbox.send(self.directory, message)
        return ident

    def read(self, name: str, messages: int, *, ago: float, entered: bool = True) -> None:
        """Let the worker pick up the first `messages` of its mail, as far as it has not yet."""
        agent = self.directory.agent(name)
        letters, before = mailbox.read(self.directory, name).entries[:messages], agents.cursor(agent).offset
        for message, end in letters:
            if end <= before:
                continue
            at = max(message.ts + 1, NOW - ago)
            journal.append(
                agent.journal,
                Intake(ts=at, run=1, messages=[message], cursor=end, entered=[message.id] if entered else []),
            )
        agent.cursor.save(Cursor(offset=letters[-1][1] if letters else 0))

    def did(self, name: str, ago: float, tool: str, arguments: dict[str, object], result: str, seconds: float) -> None:
        """Record a tool call with its outcome."""
        agent = self.directory.agent(name)
        ident = f"t-{name}-{ago}"
        journal.append(agent.journal, ToolStart(ts=NOW - ago, run=1, tool_use_id=ident, name=tool, input=arguments))
        journal.append(
            agent.journal,
            ToolResult(
                ts=NOW - ago + seconds, run=1, tool_use_id=ident, name=tool, content=result, seconds=seconds,
                is_error=result.startswith("Error"), created=tool == "write_file" and result.startswith("created "),
            ),
        )  # fmt: skip

    def began(self, name: str, ago: float, tool: str, arguments: dict[str, object]) -> None:
        """Record a tool call without an outcome."""
        agent = self.directory.agent(name)
        journal.append(
            agent.journal, ToolStart(ts=NOW - ago, run=1, tool_use_id=f"t-{ago}", name=tool, input=arguments)
        )

    def said(self, name: str, ago: float, text: str, kind: str = "text") -> None:
        """Record a text or a thought of the model."""
        agent = self.directory.agent(name)
        block = {"type": kind, kind: text}
        content, stop = ([block], "end_turn") if kind == "text" else ([block, _CALL], "tool_use")
        journal.append(
            agent.journal,
            Reply(ts=NOW - ago, run=1, content=content, stop_reason=stop, usage=Tokens(900, 80), cost_usd=0.01),
        )

    def asks(
        self, ident: str, kind: RequestType, author: str, ago: float, payload: dict[str, JsonValue],
        to: str = "operator", **more: Any,
    ) -> None:  # fmt: skip
        """Open a request to the operator, or to another agent."""
        requests.ask(self.directory, ident, kind, author, to, payload, NOW - ago, **more)


_MODELS = {
    "explore": "claude-haiku-5-5", "plan": "claude-opus-5-5", "code": "claude-sonnet-5-5", "test": "claude-sonnet-5-5",
    "lead": "claude-opus-5-5",
    # Types of Claude Code.
    "team-lead": "claude-opus-5-5", "general-purpose": "claude-sonnet-5-5", "Explore": "claude-haiku-5-5",
}  # fmt: skip


def make_empty(root: Path, name: str = "demo") -> Frozen:
    """Make a team without agents."""
    root.mkdir(parents=True, exist_ok=True)
    directory = TeamDirectory(root / ".crewboard" / name)
    directory.make()
    directory.config.save(Config(name=name, created_at=NOW - 3600))
    return Frozen(directory)


def make_team(root: Path) -> Frozen:
    """Make a team with eleven agents in every state, with tasks, mail, plans and a death. Results are no needs."""
    frozen = make_empty(root)
    roster.change(frozen.directory, lambda config: setattr(config, "result_needs", False))
    _hire_all(frozen)
    _put_tasks(frozen)
    _send_mail(frozen)
    _work(frozen)
    return frozen


def _spent(used: int, cost: float) -> dict[str, Any]:
    return {
        "context": Context(used=used * 2000, limit=200_000),
        "tokens": Tokens(input=used * 941, output=used * 88, cache_read=used * 4200, cache_write=used * 310),
        "cost_usd": cost,
    }


def _hire_all(frozen: Frozen) -> None:
    killed = Exit(run=1, signal=9, reason="died", at=NOW - 132, buried=True)
    frozen.gone("parser", "code", killed, 4388, role="grammar", task=14,
                last_tool="bash pytest -x tests/parser", **_spent(61, 1.92))  # fmt: skip
    hire = frozen.hire
    hire("auth-plan", "plan", "waiting", "waits for a yes", ago=252, pid=4412, rss=118, waiting_for="req-004281",
         task=7, turn=9, **_spent(38, 0.61))  # fmt: skip
    hire("docs", "code", "waiting", "waits for an answer", ago=64, pid=4420, rss=96, waiting_for="req-004290",
         **_spent(22, 0.18))  # fmt: skip
    hire("migrate", "code", "working", "bash alembic upgrade head", ago=540, pid=4391, cpu=2, rss=210,
         deadline=NOW - 60, task=11, **_spent(71, 2.40))  # fmt: skip
    hire("flaky-hunt", "test", "working", "bash pytest -k sync", ago=180, pid=4402, cpu=98, rss=310, repeats=6,
         **_spent(55, 1.05))  # fmt: skip
    hire("api", "code", "working", "edit_file src/api/routes.py", ago=12, pid=4395, cpu=11, rss=140, role="backend",
         task=9, turn=14, **_spent(44, 0.93))  # fmt: skip
    hire("ui", "code", "working", "thinking", ago=31, pid=4399, cpu=1, rss=122, role="frontend", task=10,
         **_spent(29, 0.52))  # fmt: skip
    hire("perf", "explore", "working", "grep lru_cache src/", ago=2, pid=4405, cpu=24, rss=88, **_spent(18, 0.11))
    hire("release", "code", "retrying", "", ago=120, pid=4410, rss=101, retry_at=NOW + 14, last_error="429 rate limit",
         **_spent(33, 0.40))  # fmt: skip
    hire("reviewer", "explore", "idle", "", ago=360, pid=4407, rss=79, **_spent(12, 0.07))
    done = Exit(run=1, code=0, reason="finished", at=NOW - 600, buried=True)
    frozen.gone("scan", "explore", done, 4385, **_spent(40, 0.20))


def _put_tasks(frozen: Frozen) -> None:
    frozen.task(2, "survey the repository", "completed", owner="scan", updated_at=NOW - 600)
    frozen.task(7, "rotate JWT keys", "in_progress", owner="auth-plan", updated_at=NOW - 500)
    frozen.task(9, "paginate /orders", "in_progress", owner="api")
    frozen.task(10, "order list with infinite scroll", "in_progress", owner="ui", updated_at=NOW - 400)
    frozen.task(11, "database migration 0041", "in_progress", owner="migrate", updated_at=NOW - 540)
    frozen.task(14, "parse the 2.0 grammar", last_owner="parser", updated_at=NOW - 132)
    frozen.task(22, "cut the release", owner="release", blocked_by=[9, 11])
    frozen.task(23, "write the changelog")


def _send_mail(frozen: Frozen) -> None:
    send = frozen.mail
    send(1, "operator", "api", "task_assignment", "Task 9: paginate /orders", 720, task_id=9)
    send(2, "operator", "api", "broadcast", "freeze main in 20 minutes", 172, broadcast_id="b1")
    send(3, "operator", "ui", "broadcast", "freeze main in 20 minutes", 172, broadcast_id="b1")
    send(4, "ui", "api", "message", "what is the cursor parameter called?", 15)
    send(5, "operator", "api", "message", "please keep ?page= as a deprecated alias", 4)
    send(6, "api", "ui", "message", "`after`, an opaque string", 9)
    for number, text in enumerate(("is the schema final?", "the token table moved", "ping"), 10):
        send(number, "ui", "parser", "message", text, 140 - number)
    for number, text in enumerate(("please look at routes.py", "and at its tests"), 20):
        send(number, "api", "reviewer", "message", text, 60 - number)
    send(30, "scan", "lead", "result", "The repository has 41 modules; the tests of sync are flaky.", 600,
         result="results/scan-1-1.md")  # fmt: skip
    send(31, "system", "lead", "teammate_terminated", "parser ended: signal 9, killed by a signal", 132)
    frozen.read("api", 2, ago=700)
    frozen.read("ui", 1, ago=160)


def _work(frozen: Frozen) -> None:
    frozen.said("api", 21, "need a cursor, not an offset", "thinking")
    frozen.did("api", 19, "grep", {"pattern": "def list_orders", "path": "src/"}, "src/api/routes.py:204", 0.1)
    frozen.did("api", 16, "read_file", {"path": "src/api/routes.py"}, "(48 lines)", 0.1)
    frozen.read("api", 3, ago=700)
    edit: dict[str, object] = {"path": "src/api/routes.py", "old_text": OLD, "new_text": NEW}
    frozen.did("api", 12, "edit_file", edit, "replaced 1 occurrence", 0.2)
    frozen.did("release", 200, "read_file", {"path": "src/api/routes.py"}, "(48 lines)", 0.1)
    frozen.directory.agent("api").live.write_text(
        "Adding cursor pagination to /orders. I keep `page` as a deprecated alias for one release and "
    )
    frozen.did("parser", 300, "read_file", {"path": "grammar/v2.ebnf"}, "(210 lines)", 0.1)
    frozen.began("parser", 140, "bash", {"command": "pytest -x tests/parser"})
    frozen.directory.agent("parser").log.write_text("collected 214 items / 3 errors\nKilled\n")
    frozen.asks("req-004270", "plan_approval", "auth-plan", 700, {"plan": "# Rotate keys\n\nReplace the key."})
    payload: dict[str, JsonValue] = {
        "plan": PLAN,
        "files": ["keys/ring.py", "settings.py", "middleware/auth.py", "migrations/0042.py", "tests/test_keyring.py"],
        "commands": ["alembic upgrade head", "pytest"],
        "risk": "schema change; all users are logged out if the ring is empty",
    }
    frozen.asks("req-004281", "plan_approval", "auth-plan", 252, payload, supersedes="req-004270")
    question: dict[str, JsonValue] = {
        "question": "The 1.x API pages are linked from two blog posts. Keep them?",
        "options": ["yes, with a banner", "no, redirect them", "ask marketing first"],
    }
    frozen.asks("req-004290", "question", "docs", 64, question)
    answer = Answer(
        ts=NOW - 600, run=1, assignment="p-scan", answers=["p-scan"], text="41 modules", result="scan-1-1.md"
    )
    journal.append(frozen.directory.agent("scan").journal, answer)
