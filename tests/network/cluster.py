"""A team whose hosts run on machines of a network, and the checks that hold after each fault."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from crewboard.commands import hire as hiring
from crewboard.errors import StorageError
from crewboard.records.events import Intake, RunStarted
from crewboard.records.team import Task
from crewboard.store import agents, codec, hosts, leases, mailbox, tasks
from tests.crew import Crew, eventually
from tests.model import ModelServer
from tests.network.machines import Machine, Network
from tests.postgres import SharedServer, close_connections, set_lease_ttl

AUTHORS = ("operator", "ann")
"""The agents that send mail while something fails."""

_LETTER_INTERVAL, _TASK_INTERVAL = 0.1, 1.0

_MOST_TASKS = 6
"""Open tasks above which no further one is added: a busy machine ends fewer than one in `_TASK_INTERVAL`."""

# Which machine wrote what, in the order in which the store kept it.
_AUDIT = """
CREATE TABLE public.writes (
  number bigserial PRIMARY KEY, at timestamptz DEFAULT clock_timestamp(), machine inet DEFAULT inet_client_addr(),
  path text, body bytea
);
CREATE FUNCTION public.note_line() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO public.writes (path, body)
    SELECT folder || '/' || name, NEW.line FROM crewboard.entries WHERE id = NEW.log;
  RETURN NULL;
END $$;
CREATE FUNCTION public.note_record() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF NEW.kind = 'record' AND NEW.body IS NOT NULL THEN
    INSERT INTO public.writes (path, body) VALUES (NEW.folder || '/' || NEW.name, NEW.body);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT ON crewboard.lines FOR EACH ROW EXECUTE FUNCTION public.note_line();
CREATE TRIGGER note AFTER INSERT OR UPDATE ON crewboard.entries FOR EACH ROW EXECUTE FUNCTION public.note_record();
"""


class Write(Struct, frozen=True):
    """A line or a record that was written by a machine; None is the operator's."""

    number: int
    machine: str | None
    path: str
    body: bytes

    @property
    def fields(self) -> dict[str, Any]:
        return dict(msgspec.json.decode(self.body))


class Cluster:
    """A team in the database of a network. The operator's machine is this one, and reaches the database directly."""

    def __init__(self, network: Network, folder: Path, model: ModelServer, ttl: float) -> None:
        self.network = network
        self.ttl = ttl
        self.url = SharedServer.database_on(network.server.url)
        # Where a team is kept is read once for each path.
        self.folder = folder / self._database
        root = self.folder / "operator"
        root.mkdir(parents=True)
        self.crew = Crew(root, model, store=self.url)
        set_lease_ttl(self.url, ttl)
        self.run(_AUDIT)
        close_connections()
        self.machines: dict[str, Machine] = {}
        self.all_machines: list[Machine] = []
        self.sent: dict[str, dict[str, list[str]]] = defaultdict(lambda: {author: [] for author in AUTHORS})
        """The ids of all mail that the store acknowledged, by recipient and author."""

    def __getitem__(self, name: str) -> Machine:
        return self.machines[name]

    @property
    def _database(self) -> str:
        return self.url.partition("?")[0].rpartition("/")[2]

    @property
    def url_for_machines(self) -> str:
        return f"postgresql://crew@{self.network.database}/{self._database}"

    def add(self, *names: str, **patches: str) -> None:
        """Add machines with a host each to the network, and wait until they are up."""
        for name in names:
            folder = self.folder / f"{name}{len(self.all_machines)}"
            machine = self.machines[name] = Machine(self.network, name, folder, patches.get(name, ""))
            self.all_machines.append(machine)
            machine.start_host(self.url_for_machines)
        for name in names:
            self.wait_for_host(name)

    def wait_for_host(self, name: str) -> None:
        """Wait until a host is up, also after its network was away."""
        eventually(lambda: self.is_up(name) or not self[name].is_hosting(), f"the host {name}")
        assert self[name].is_hosting(), self[name].log.read_text()

    def is_up(self, name: str) -> bool:
        """Return True if a host is up, and it is one of the machine that has this name now."""
        record = hosts.load(self.crew.directory, name)
        return record is not None and record.boot_id == self[name].boot_id and hosts.is_up(self.crew.directory, name)

    def end(self) -> None:
        """End all machines at once."""
        for machine in self.all_machines:
            # Shown if the test failed.
            print(f"host {machine.name}:\n{machine.log.read_text()}")
            machine.kill()
        close_connections()

    # What is asked of it.

    def start(self, name: str, host: str, kind: str = "explore", prompt: str = "say hello", **flags: Any) -> None:
        """Hire an agent on a host, and wait until it is at work."""
        assigned = self.crew.hire(name, kind, prompt, host=host, **flags)
        if prompt == "say hello":
            self.crew.answer(assigned)

    def resume(self, name: str, host: str) -> float:
        """Resume an agent on a host. Return the seconds until the first line of its new run."""
        before = agents.last_run(self.crew.agent(name))
        began = time.monotonic()
        hiring.resume(self.crew.team, name, host=host)
        run = eventually(lambda: max(0, self.last_run(name) - before), "a new run")
        assert run == 1
        return time.monotonic() - began

    def last_run(self, name: str) -> int:
        return max((event.run for event in self.crew.events(name) if isinstance(event, RunStarted)), default=0)

    def host_of(self, name: str) -> str:
        status = self.crew.agent(name).status.load()
        return "" if status is None else status.host

    def is_held(self, name: str) -> bool:
        return leases.is_held(self.crew.agent(name).lease)

    def now(self) -> float:
        """Return the time by the clock of the store."""
        [(now,)] = self.run("SELECT extract(epoch FROM clock_timestamp())::float8")
        return float(now)

    def end_of_leases(self, *names: str) -> float:
        """Return when the last lease of some agents ended or ends, by the clock of the store."""
        folders = ", ".join(f"'agents/{name}'" for name in names)
        [(end,)] = self.run(
            f"SELECT extract(epoch FROM max(until))::float8 FROM crewboard.leases WHERE folder IN ({folders})"
        )
        return float(end)

    def reason(self, name: str, run: int = 1) -> str | None:
        """Return why a run ended if that is recorded."""
        record = self.crew.agent(name).exit.load()
        return record.reason if record is not None and record.run == run and record.buried else None

    # Mail.

    @contextmanager
    def mail(self, *recipients: str) -> Iterator[None]:
        """Let two authors send mail to each recipient, and a third one add tasks, all the time."""
        ended = threading.Event()

        def plan() -> None:
            number = 0
            while not ended.wait(_TASK_INTERVAL):
                with suppress(StorageError):
                    if len(self.open_tasks()) < _MOST_TASKS:
                        number += 1
                        tasks.add(self.crew.directory, f"say task {number} is done", time.time())

        def write(author: str) -> None:
            number = 0
            while not ended.wait(_LETTER_INTERVAL):
                number += 1
                for to in recipients:
                    letter = mailbox.compose(author, to, "message", f"letter {number}")
                    try:
                        mailbox.send(self.crew.directory, letter)
                    except StorageError:
                        # It may be there or not.
                        continue
                    self.sent[to][author].append(letter.id)

        threads = [threading.Thread(target=write, args=(author,)) for author in AUTHORS]
        threads.append(threading.Thread(target=plan))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()

    def wait_for_mail(self, name: str, more: int = 5) -> None:
        """Wait until an agent has taken in some more of its mail."""
        before = len(self.taken_in(name))
        eventually(lambda: len(self.taken_in(name)) >= before + more, f"mail taken in by {name}")

    def taken_in(self, name: str) -> list[tuple[str, str]]:
        """Return author and id of all messages that an agent took in."""
        return [
            (each.from_, each.id)
            for event in self.crew.events(name)
            if isinstance(event, Intake)
            for each in event.messages
        ]

    def open_tasks(self) -> list[Task]:
        return [task for task in tasks.load_all(self.crew.directory) if task.status != "completed"]

    # What holds after each fault.

    def check(self) -> None:
        """Check that nothing was lost, done twice, or written by what was replaced."""
        for name in self.sent:
            self._check_mail(name)
        writes = self.writes()
        for member in self.crew.team.config.members:
            _check_runs(writes, member.name)
        self._check_tasks()

    def _check_mail(self, name: str) -> None:
        sent = self.sent[name]
        missing = {ident for idents in sent.values() for ident in idents}
        eventually(lambda: missing <= {ident for _, ident in self.taken_in(name)}, f"all mail taken in by {name}")
        taken = self.taken_in(name)
        assert len(taken) == len({ident for _, ident in taken}), f"{name} took in mail twice"
        for author, idents in sent.items():
            known = set(idents)
            assert [ident for by, ident in taken if by == author and ident in known] == idents, f"order of {author}"

    def _check_tasks(self) -> None:
        """Check that each task has one owner at a time, who changes only after a release, and is completed once."""
        try:
            eventually(lambda: not self.open_tasks(), "the end of all tasks")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.open_tasks()}") from None
        last: dict[str, Task] = {}
        for write in self.writes():
            if not write.path.startswith("tasks/") or not write.path.endswith(".json"):
                continue
            task, before = codec.decode(write.body, Task), last.get(write.path)
            if before is not None:
                assert before.owner in {None, task.owner} or task.owner is None, f"{before} became {task}"
                assert before.status != "completed" or task.status == "completed", f"{before} became {task}"
            last[write.path] = task

    def writes(self) -> list[Write]:
        rows = self.run("SELECT number, host(machine), path, body FROM public.writes ORDER BY number")
        return [Write(*row) for row in rows]

    def run(self, statements: str) -> list[tuple[Any, ...]]:
        """Run statements in the database; return the rows of a query."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            done = connection.execute(statements.encode())
            return done.fetchall() if done.description is not None else []

    def check_drained(self, name: str) -> None:
        """Drain a host, and check that no process is left on its machine."""
        assert self[name].drain() == 0, self[name].log.read_text()
        eventually(lambda: not self[name].processes(), f"the end of all processes on {name}")


def _check_runs(writes: list[Write], name: str) -> None:
    """Check that runs follow each other in the journal, and that no machine writes for an agent that it lost."""
    run, machine = 0, None
    lost = set[str | None]()
    for write in writes:
        if write.path == f"agents/{name}/journal.jsonl":
            fields = write.fields
            assert fields["run"] >= run, f"run {fields['run']} of {name} wrote after run {run}"
            if fields["run"] > run:
                assert fields["kind"] == "run_started"
                lost |= {machine} if machine else set()
                run, machine = fields["run"], write.machine
                lost -= {machine}
            assert write.machine == machine, f"two machines wrote for run {run} of {name}"
        elif write.machine in lost and _is_by_worker(write, name):
            raise AssertionError(
                f"{write.path} was written by {write.machine} after run {run} of {name} began elsewhere"
            )
        elif write.path == f"agents/{name}/status.json":
            assert write.fields["run"] >= run, f"run {write.fields['run']} of {name} is shown after run {run}"


def _is_by_worker(write: Write, name: str) -> bool:
    if write.path.startswith("inbox/"):
        return write.fields.get("from") == name
    return write.path in {f"agents/{name}/{record}.json" for record in ("status", "cursor")}


def measured(condition: Callable[[], object], since: float, what: str) -> float:
    """Wait for a condition; return the seconds since a time (monotonic)."""
    eventually(lambda: bool(condition()), what)
    return time.monotonic() - since
