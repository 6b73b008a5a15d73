"""Every key and path of a team directory (docs/reference/files.md), and the check that it belongs to this user.

No other module builds these paths.

The check of the folders when a team is opened, and O_NOFOLLOW for each file that is opened (`files.open_existing`), are
enough. These could put a symbolic link or a foreign folder into a path of the team:

- A cloned repository: its files exist before the team is opened, so the first check finds them.
- An agent of the team: no sandbox allows writing in `.crewboard`.
- Another user of the machine: cannot write in folders that this user owns and that are closed to group and others; a
  `.crewboard` with another owner is refused. In a root where other users may rename entries of this user, they could
  exchange the whole `.crewboard` while a supervisor runs (docs/reference/sandbox.md).
- Another program of this user outside of every sandbox: has all rights of this program anyway.
"""

import contextlib
import errno
import functools
import os
import shlex
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import ClassVar, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar

from msgspec import Struct

from crewboard import env
from crewboard.errors import CrewboardError, StorageError, UntrustedError, UsageError, how_to_install
from crewboard.names import TEAMS_FOLDER, is_name
from crewboard.records.agents import Cursor, Spec, Status, Undone
from crewboard.records.base import Record
from crewboard.records.processes import Exit, HeldStarts, Host, SupervisorFailure, WantedRun
from crewboard.records.requests import Request
from crewboard.records.team import (
    Acceptances,
    Carried,
    Checked,
    Collisions,
    Config,
    Cooldown,
    OperatorState,
    Task,
    ToldNeeds,
    Workspace,
)
from crewboard.store import files, team_marks
from crewboard.store.file_store import FileStore
from crewboard.store.interface import Key, Listener, Store
from crewboard.store.json_records import RecordFolder, RecordKey, cached_file

P = ParamSpec("P")
R = TypeVar("R", bound=Record)
T = TypeVar("T")

HOME: str = TEAMS_FOLDER
DEFAULT_TEAM = "default"

STORE = "store"
"""The file in a team directory with the address of the team's store, if its records are not kept in the directory
itself.
"""

_FOLDERS = ("", "inbox", "results", "tasks", "requests", "agents", ".locks")

_WRITABLE_BY_OTHERS = 0o022
_ONLY_OWN = "crewboard opens only a team directory that this user made"


Directory: TypeAlias = "AgentDirectory | HostDirectory | TeamDirectory"


class Place:
    """The place of a log, a lease or a folder in a directory; reading the attribute gives its `Key`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, owner: Directory, kind: type) -> Key:
        return owner.key(self.name)


class LocalPlace:
    """The place of a file or folder that only processes of this machine use; reading the attribute gives its `Path`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, owner: "AgentDirectory | TeamDirectory", kind: type) -> Path:
        return owner.path / self.name


class LocalLease:
    """The place of a lease that only processes of this machine take; reading the attribute gives its `Key`.

    It is in the local folder, wherever the team is stored.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, owner: "TeamDirectory", kind: type) -> Key:
        return owner.local_key(self.name)


class RecordPlace(Generic[R]):
    """The place of a record, its type, and the lock for its changes, if any.

    Reading the attribute gives the record's `RecordKey`.
    """

    def __init__(self, name: str, model: type[R], lock: str = "") -> None:
        self.name, self.model, self.lock = name, model, lock

    def __get__(self, owner: Directory, kind: type) -> RecordKey[R]:
        key = owner.key(self.name)
        return RecordKey(key.store, key.name, self.model, self.lock and f".locks/{self.lock.format(owner)}")


class RecordFolderPlace(Generic[R]):
    """The place of a folder with records of one type; reading the attribute gives its `RecordFolder`."""

    def __init__(self, name: str, model: type[R]) -> None:
        self.name, self.model = name, model

    def __get__(self, owner: Directory, kind: type) -> RecordFolder[R]:
        key = owner.key(self.name)
        return RecordFolder(key.store, key.name, self.model)


class _MemberDirectory(Struct, frozen=True):
    """The places of the data of one agent or host, in the folder with its name in the folder `kind` of the team."""

    kind: ClassVar[str]
    team: "TeamDirectory"
    name: str

    @property
    def folder(self) -> Key:
        return self.team.key(f"{self.kind}/{self.name}")

    def key(self, name: str) -> Key:
        """Return the key of a name in this folder."""
        return self.team.key(f"{self.kind}/{self.name}/{name}")


class AgentDirectory(_MemberDirectory, frozen=True):
    """The places of one agent's data, below `agents/<name>/`."""

    kind = "agents"

    spec = RecordPlace("spec.json", Spec, lock="spec-{0.name}")
    status = RecordPlace("status.json", Status)
    exit = RecordPlace("exit.json", Exit, lock="exit-{0.name}")
    cursor = RecordPlace("cursor.json", Cursor)
    checked = RecordPlace("checked.json", Checked)
    undone = RecordPlace("undone.json", Undone)
    journal = Place("journal.jsonl")
    lease = Place("lease")
    media = Place("media")
    """The images and documents of the conversation, if the team is not kept in files."""

    log = LocalPlace("worker.log")
    live = LocalPlace("live")
    """The reply of the model that is being streamed."""
    kept = LocalPlace("kept")
    """Contents of files before the agent's file tools changed them, and images and documents, each by its SHA-256."""
    engine_home = LocalPlace("engine")
    """The home of the agent's engine, which keeps its sessions there."""

    @classmethod
    def at(cls, path: Path) -> "AgentDirectory":
        """Return the directory of the agent whose folder is `path`."""
        return cls(TeamDirectory(path.parent.parent), path.name)

    @property
    def path(self) -> Path:
        return self.team.agents / self.name

    @property
    def checking(self) -> Key:
        """Return the key of the lease that is held while a check of the agent runs."""
        return self.team.key(f".locks/check-{self.name}")


class HostDirectory(_MemberDirectory, frozen=True):
    """The places of one host's data, below `hosts/<name>/`."""

    kind = "hosts"

    record = RecordPlace("host.json", Host)
    lease = Place("lease")
    held = RecordPlace("starts.json", HeldStarts)
    """The starts that the host holds back, in the form of `starts.json` of a team without hosts."""
    claims = RecordFolderPlace("starts", WantedRun)
    """The runs that the host claimed and has not begun."""


class TeamDirectory(Struct, frozen=True):
    """The directory of one team, `<root>/.crewboard/<team>/`: keys in its store, and paths of files on this machine.

    Records, logs of events and leases have keys. Files that processes of this machine share have paths: worktrees and
    their state, logs of processes, locks of files that agents work on (`local_lock`), the marks of ownership, and the
    folders that the sandbox shows to agents or that file events come from.
    """

    path: Path

    config = RecordPlace("config.json", Config, lock="roster")
    operator = RecordPlace("operator.json", OperatorState, lock="operator")
    collisions = RecordPlace("collisions.json", Collisions)
    """Unmerged work of agents with worktrees, and which of it conflicts."""
    acceptances = RecordPlace("acceptances.json", Acceptances, lock="acceptances")
    cooldown = RecordPlace("cooldown.json", Cooldown, lock="cooldown")
    told = RecordPlace("told.json", ToldNeeds)
    starts = RecordPlace("starts.json", HeldStarts)
    supervisor_failure = RecordPlace("supervisor-failure.json", SupervisorFailure, lock="supervisor-failure")
    workspace = RecordPlace("workspace.json", Workspace)
    """The state of the user's repository with which agents of a team with hosts begin."""
    workspaces = RecordFolderPlace("workspaces", Carried)
    """The newest snapshot of each agent on a host."""
    tasks = RecordFolderPlace("tasks", Task)
    requests = RecordFolderPlace("requests", Request)
    starts_queue = RecordFolderPlace("starts", WantedRun)
    """The runs that no host has claimed yet."""

    hosts = Place("hosts")
    bundles = Place("bundles")
    """The parts of git bundles."""
    last_task_id = Place("tasks/.last-id")
    """The highest task id ever used."""
    audit = Place("audit.jsonl")
    presence = Place("presence")
    """A lease of each open dashboard."""
    removed = Place("removed")
    """The records that are kept of removed agents."""
    mirror = Place("mirror.json")
    """The progress of mirroring a team of another program."""

    supervisor_lock = LocalLease("supervisor.lock")
    mirror_lock = LocalLease("mirror.lock")
    """The lease of the process that mirrors a team of another program."""
    notifier_lock = LocalLease(".locks/notifier")
    """The lease of a supervisor that gets file events and wakes workers by them."""
    model_lock = LocalLease("model.lock")
    """The lease of the offline model's server, with its pid and address."""

    supervisor_log = LocalPlace("supervisor.log")
    model_log = LocalPlace("model.log")
    owners = LocalPlace(team_marks.MARKS)
    """The marks of the users who made or adopted the team."""
    inboxes = LocalPlace("inbox")
    results = LocalPlace("results")
    agents = LocalPlace("agents")
    worktrees = LocalPlace("worktrees")
    workspace_repository = LocalPlace("workspace.git")
    """The git repository on this machine with the pushed state, from which checkouts of a host borrow objects."""

    @property
    def store(self) -> Store:
        """Return the store of the team: its own folder, or the one whose address is in the file `store` there.

        Raises:
            StorageError: The file with the address cannot be read, or the package for that store is missing.
        """
        if (known := _opened.get(self.path)) is not None:
            return known
        address = self.address
        store: Store = FileStore(str(self.path))
        # The store of a foreign team is not contacted: anyone may have named it.
        with files.storage_errors(f"cannot tell who made {self.path}"):
            if address is not None and not team_marks.is_marked(self.path):
                return store
        if address is not None:
            store = remote_store(address, self.path.name)
        # A directory has the file from its beginning, or never.
        if os.path.lexists(self.path):
            _opened[self.path] = store
        return store

    @property
    def address(self) -> str | None:
        """Return the address of the store; None if the team is kept in its own folder.

        Raises:
            StorageError: The file with the address cannot be read.
        """
        kept = files.read_file(self.path / STORE)
        return None if kept is None else os.fsdecode(kept).strip()

    @property
    def local(self) -> FileStore:
        """Return the store of what only processes of this machine use: the team's folder, for a team of any store."""
        return FileStore(str(self.path))

    def key(self, name: str) -> Key:
        """Return the key of a name in the team's store."""
        return Key(self.store, name)

    @property
    def acceptances_here(self) -> RecordKey[Acceptances]:
        """Return the key of the record of merges that this machine's clone has, with the move under way.

        Of a team in files, these are all merges.
        """
        return self.acceptances.in_store(self.local)

    def local_key(self, name: str) -> Key:
        """Return the key of a name in the local store."""
        return Key(self.local, name)

    @property
    def _places(self) -> tuple[Store, ...]:
        """Return the team's store and the local one; only one if they are the same."""
        return tuple(dict.fromkeys((self.store, self.local)))

    def make_folder(self, name: str) -> None:
        """Create a folder in the team's store, and one of that name on this machine."""
        for place in self._places:
            place.make_folder(name)

    def move(self, name: str, to: str) -> None:
        """Move a name, with all that is in it, in the team's store and on this machine."""
        for place in self._places:
            place.move(name, to)

    def purge(self) -> None:
        """Remove everything that is stored of the team, also on this machine."""
        for place in self._places:
            place.purge()
        _opened.pop(self.path, None)

    def keep_result(self, name: str, text: bytes) -> None:
        """Store a text in `results`, and a copy on this machine, whose files the tools of agents read."""
        for place in reversed(self._places):
            place.put(f"results/{name}", text, durable=True)

    def share_result(self, name: str) -> None:
        """Copy a text that was written to `results` on this machine to the team's store, for other machines.

        Raises:
            StorageError: It cannot be read, or the store failed.
        """
        text = self.local.get(f"results/{name}") if self.store != self.local else None
        if text is not None:
            self.store.put(f"results/{name}", text, durable=True)

    def fetch_result(self, path: str) -> None:
        """Copy the text at a path in `results` from the team's store to this machine, if another machine wrote it.

        Raises:
            StorageError: The store or the write failed.
        """
        named = PurePosixPath(path)
        place = f"results/{named.name}"
        if self.store == self.local or named.parts[-3:-1] != (self.path.name, "results"):
            return
        if self.local.changed(place) is None and (text := self.store.get(place)) is not None:
            self.local.put(place, text)

    def listen(self, heard: Callable[[str], None], *, deep: bool = False) -> Listener:
        """Call `heard` with names that may have changed, as `Store.listen` does; return the subscription.

        Raises:
            StorageError: There are no hints.
        """
        listeners = _Listeners()
        try:
            for place in self._places:
                listeners.all.append(place.listen(heard, deep=deep, leases=self.lease_names))
        except StorageError:
            listeners.stop()
            raise
        return listeners.all[0] if len(listeners.all) == 1 else listeners

    @property
    def root(self) -> Path:
        """Return the root of the team, which is the workspace of its agents."""
        return self.path.parent.parent

    def known_as(self, name: str) -> str:
        """Return `name`, which the roster says, unless another team of the root has it, too: then that of the folder.

        So is a team that was copied: `--team` and `team delete` would find the other one by that name.
        """
        if name == self.path.name:
            return name
        with contextlib.suppress(CrewboardError):
            for team in _team_folders(self.root):
                # No other store is asked: this team would wait for one that does not answer.
                is_elsewhere = team.address is not None
                roster = None if is_elsewhere else cached_file(team.config).get()
                names = {team.path.name, *([roster.name] if roster is not None else [])}
                if team != self and name in names and (is_elsewhere or team.exists()):
                    return self.path.name
        return name

    def worktree(self, name: str) -> Path:
        """Return the path of the checkout of the agent `name`; it exists only if the agent has a worktree."""
        return self.worktrees / name

    def worktree_ready(self, name: str) -> Path:
        """Return the path of the file that records the command by which an agent's checkout was set up."""
        return self.worktrees / f"{name}.ready"

    def carried(self, name: str) -> RecordKey[Carried]:
        """Return the key of the record of an agent's newest snapshot on a host."""
        return self.workspaces.record(name)

    def worktree_run(self, name: str) -> Path:
        """Return the path of the file that records for which run a host made or kept a checkout."""
        return self.worktrees / f"{name}.run"

    def host(self, name: str) -> HostDirectory:
        return HostDirectory(self, name)

    @property
    def lease_names(self) -> frozenset[str]:
        """Return the names of the lease files that show that an agent, the supervisor or the offline model runs."""
        return frozenset({"lease", self.supervisor_lock.name, self.model_lock.name})

    def has_model_mark(self) -> bool:
        """Return True if an agent has used the offline model on this machine; False if not, or if it is not known."""
        try:
            return self.model_lock.changed() is not None
        except StorageError:
            return False

    def agent_names(self) -> list[str]:
        """Return the names of all agents that have a folder, in no order; empty if they cannot be listed."""
        try:
            return [name for name in self.key("agents").names() if is_name(name)]
        except StorageError:
            return []

    def agents_exist(self) -> bool:
        """Return True if the team has a folder of agents, as it has until it is removed. False if it is not known."""
        try:
            return self.key("agents").exists()
        except StorageError:
            return False

    def result(self, name: str) -> Key:
        """Return the key of a text in `results`: an answer, a long message, a diff."""
        return self.key(f"results/{name}")

    def agent(self, name: str) -> AgentDirectory:
        return AgentDirectory(self, name)

    def inbox(self, name: str) -> Key:
        return self.key(f"inbox/{name}.jsonl")

    def task(self, task_id: int) -> RecordKey[Task]:
        return self.tasks.record(task_id)

    def request(self, request_id: str) -> RecordKey[Request]:
        return self.requests.record(request_id)

    def lock(self, what: str) -> Key:
        """Return the key of a lock for changes of records; `what` is its name."""
        return self.key(f".locks/{what}")

    def local_lock(self, what: str) -> Path:
        """Return the path of a lock for changes of files that agents of this machine work on; `what` is its name."""
        return self.path / ".locks" / what

    def lease(self, what: str) -> Key:
        """Return the key of the lease of a job that one process of this machine does at a time for the team."""
        return self.local_key(f".locks/{what}")

    def exists(self) -> bool:
        """Return True if there is such a team.

        Also return True if the store of the team is out of reach, or must not be contacted because the team is foreign;
        and if the team has agents and its roster is gone: a new one would have no rules and leave its agents out.

        Raises:
            StorageError: The team's folder on this machine cannot be read.
        """
        is_elsewhere = os.path.lexists(self.path / STORE)
        try:
            if self.config.exists() or (is_elsewhere and self.store == self.local):
                return True
            return any(self.agent(name).spec.exists() for name in self.agent_names())
        except StorageError:
            if is_elsewhere:
                return True
            raise

    def require_own(self) -> None:
        """Refuse a team with a folder that another user controls. Every process calls this before it opens a file.

        Raises:
            UntrustedError: `.crewboard`, the team's folder or one inside is a symbolic link, belongs to another user
                or can be written to by others.
            StorageError: A folder cannot be examined.
        """
        with files.storage_errors(f"cannot look at {self.path}"):
            for folder in (self.path.parent, self.path):
                _require_own(folder)
            for folder in (self.path, self.agents):
                inside: list[Path] = []
                with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
                    inside = [folder / entry.name for entry in entries if entry.is_symlink() or entry.is_dir()]
                for each in inside:
                    _require_own(each)

    def is_own(self) -> bool:
        """Return True if only this user can write in the team's folders. False if it is not known."""
        try:
            self.require_own()
        except CrewboardError:
            return False
        return True

    def is_foreign(self) -> bool:
        """Return True if there is a team here that this user neither made nor adopted.

        A cloned repository can contain a team, and an agent can make one in a folder of its workspace. By owner and
        mode these are files of this user, but they lack a mark that only this user's secret gives.

        Raises:
            StorageError: The team or the secret cannot be read.
        """
        if not os.path.lexists(self.path):
            return False
        with files.storage_errors(f"cannot tell who made {self.path}"):
            return not team_marks.is_marked(self.path)

    def require_adopted(self) -> None:
        """Refuse a team that this user neither made nor adopted. Commands that start, resume or send call this first.

        Raises:
            UntrustedError: The team is foreign, or another user controls it.
            StorageError: The team cannot be examined.
        """
        self.require_own()
        if self.is_foreign():
            raise UntrustedError(
                f"the team in {str(self.path)!r} is foreign: you did not make it, or it was copied. You can read it; "
                f"`crewboard --root {shlex.quote(str(self.root))} --team {self.path.name} team adopt` makes it yours"
            )

    def adopt(self) -> None:
        """Mark the team as this user's own. Idempotent.

        Raises:
            StorageError: The mark cannot be written.
            UntrustedError: Another user controls the team.
        """
        self.require_own()
        with files.storage_errors(f"cannot mark {self.path} as yours"):
            known = (files.read_file(self.owners) or b"").split()
            files.replace_file(self.owners, _mark_lines([*known, *team_marks.marks(self.path)]), durable=True)

    def make(self, url: str | None = None) -> None:
        """Create all folders of the team, accessible to their owner only. With `url`, a database has its records.

        Raises:
            UsageError: The address cannot be used, or a team of this name exists there or here.
            StorageError: The root cannot be written to, or the database is out of reach.
            UntrustedError: A folder exists already and another user controls it.
        """
        self.require_own()
        if url is not None:
            with _first_contact(url):
                there = remote_store(url, self.path.name)
                # What a team needs there is made now.
                there.make_folder("")
                if there.get("config.json") is not None:
                    raise UsageError(f"there is a team {self.path.name} in {there.describe('config.json')} already")
            if os.path.lexists(self.path):
                raise UsageError(f"{self.path} exists; choose another name, or remove it")
        self._make_here(url)
        if self.store != self.local:
            for folder in _FOLDERS:
                self.store.make_folder(folder)

    def visit(self, url: str) -> None:
        """Use a team whose records are in the database at `url`, without creating a folder on this machine.

        Raises:
            UsageError: The address cannot be used, the database has no such team, or the folder is another team's.
            StorageError: The database is out of reach.
            UntrustedError: A folder exists already and another user controls it.
        """
        self.require_own()
        if os.path.lexists(self.path):
            if self.address != url:
                raise UsageError(f"{self.path} is another team, kept in {self.address or 'files'}; use another --root")
            return
        there = remote_store(url, self.path.name)
        with _first_contact(url):
            config = there.get("config.json")
        if config is None:
            raise UsageError(
                f"there is no team {self.path.name} in {url.partition('?')[0]}: name it with --team, or create it with "
                f"`crewboard team create {self.path.name} --store {shlex.quote(url)}`"
            )
        _opened[self.path] = there

    def join(self, url: str) -> None:
        """Create this machine's folder of a team whose records are in the database at `url`. Idempotent.

        Raises:
            UsageError: The address cannot be used, the database has no such team, or the folder is another team's.
            StorageError: The root cannot be written to, or the database is out of reach.
            UntrustedError: A folder exists already and another user controls it.
        """
        self.visit(url)
        self._make_here(url)

    def _make_here(self, url: str | None) -> None:
        """Create the folders of the team that are missing on this machine."""
        with files.storage_errors(f"cannot create the team directory {self.path}"):
            files.make_folder(self.path.parent)
            if not os.path.lexists(self.path):
                self._create(url)
            for folder in _FOLDERS:
                files.make_folder(self.path / folder)
            ignore = self.path.parent / ".gitignore"
            if not ignore.exists():
                files.replace_file(ignore, b"*\n")

    def _create(self, url: str | None) -> None:
        """Create the directory, its mark and the address of its store in one step.

        Without the mark, other processes would take the team for a foreign one. It is no error if another process has
        just created the directory.

        Raises:
            OSError: The directory cannot be created.
        """
        new = self.path.with_name(f".{self.path.name}.{os.urandom(4).hex()}")
        files.make_folder(new)
        try:
            files.replace_file(new / self.owners.name, _mark_lines(team_marks.marks(new, self.path)), durable=True)
            if url is not None:
                files.replace_file(new / STORE, os.fsencode(url) + b"\n", durable=True)
            os.rename(new, self.path)
            files.sync_folder(self.path.parent)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        finally:
            import shutil

            shutil.rmtree(new, ignore_errors=True)


class _Listeners:
    """The subscriptions to the hints of several stores."""

    def __init__(self) -> None:
        self.all: list[Listener] = []

    def is_alive(self) -> bool:
        return all(each.is_alive() for each in self.all)

    def stop(self) -> None:
        for each in self.all:
            each.stop()


_opened: dict[Path, Store] = {}


def remote_store(url: str, team: str) -> Store:
    """Return the store of a team in the database at an address.

    Raises:
        UsageError: The address cannot be used.
        StorageError: The package for the database is not installed.
    """
    try:
        from crewboard.store import postgres_store
    except ImportError as error:
        raise StorageError(
            f"the records of the team {team} are in PostgreSQL, and psycopg cannot be loaded ({error}): "
            f"{how_to_install('hosts')}"
        ) from error
    postgres_store.require_url(url)
    return postgres_store.PostgresStore(url, team)


@contextlib.contextmanager
def _first_contact(url: str) -> Iterator[None]:
    """Add advice to the error if the database of a team that is new to this machine cannot be reached."""
    try:
        yield
    except StorageError as error:
        if not error.away:
            raise
        raise StorageError(
            f"{error}; check host, port, database and role in the address, the password in ~/.pgpass, and "
            f"`psql {shlex.quote(url)}`"
        ) from error


_OfTeam = Callable[Concatenate[TeamDirectory, P], T]


def under_lock(what: str) -> Callable[["_OfTeam[P, T]"], "_OfTeam[P, T]"]:
    """Return a decorator that runs a function of a team while no other process runs one under the same lock.

    The function may be run again from its start, so it may change nothing but records.
    """

    def decorate(function: "_OfTeam[P, T]") -> "_OfTeam[P, T]":
        def run(team: TeamDirectory, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return team.lock(what).locked(lambda: function(team, *args, **kwargs))

        return functools.update_wrapper(run, function)

    return decorate


def _mark_lines(marks: Iterable[bytes]) -> bytes:
    return b"".join(mark + b"\n" for mark in dict.fromkeys(marks))


def _unsafe_reason(path: Path) -> str | None:
    """Return why another user or a cloned repository may control the folder `path`; None if neither can.

    None as well if there is no such folder: opening a file in it will report that.

    Raises:
        OSError: The folder cannot be examined.
    """
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(found.st_mode):
        return "is a symbolic link"
    if not stat.S_ISDIR(found.st_mode):
        return None
    if found.st_uid != os.geteuid():
        return f"belongs to another user (uid {found.st_uid})"
    if found.st_mode & _WRITABLE_BY_OTHERS:
        return f"can be written to by other users (mode {stat.S_IMODE(found.st_mode):o})"
    return None


def _require_own(folder: Path) -> None:
    unsafe = _unsafe_reason(folder)
    if unsafe is not None:
        found = os.lstat(folder)
        is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        protect = f"`chmod -R go-w {shlex.quote(str(folder))}` if you did, else " if is_own else ""
        remedy = f"{protect}remove it, or choose another folder with --root"
        raise UntrustedError(f"{str(folder)!r} {unsafe}; {_ONLY_OWN}: {remedy}")


def find_root(explicit: str | os.PathLike[str] | None = None, cwd: Path | None = None) -> Path:
    """Return `explicit`, else `$CREWBOARD_ROOT`, else the nearest ancestor with a team, else the current folder.

    An ancestor whose `.crewboard` another user controls is skipped with a warning: any user can create one in a shared
    folder such as `/tmp`. An ancestor with foreign teams alone is skipped if one further up has a team of this user: an
    agent can create a team in a folder of its workspace. The folder `/` is the root only if it is named.

    Raises:
        UsageError: The named root is not a directory, or the current directory is `/` and none is named; or the path of
            the root is not UTF-8.
        UntrustedError: Another user controls the `.crewboard` of the named root.
    """
    named = explicit or env.root()
    if named:
        root = _require_directory(named)
        _require_own(root / HOME)
        return _require_text(root)
    here = (cwd or Path.cwd()).resolve()
    foreign: Path | None = None
    for folder in (here, *here.parents)[:-1]:
        if not _has_own_teams(folder):
            continue
        with contextlib.suppress(CrewboardError):
            if any(not team.is_foreign() for team in team_directories(folder)):
                if foreign is not None:
                    says = "its teams are foreign; `crewboard --root DIR team adopt`"
                    _warn_once(f"skipped {str(foreign / HOME)!r}: {says}")
                return _require_text(folder)
        foreign = foreign or folder
    if foreign is None and here.parent == here:
        raise UsageError(
            "/ is the whole machine, and its agents would work on all of it; change to the folder of your project, "
            "or name it: crewboard --root /"
        )
    return _require_text(foreign or here)


def _require_text(root: Path) -> Path:
    # Records, requests to models and messages between processes are JSON, and contain paths.
    try:
        str(root).encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the path {str(root)!r} is not UTF-8: use a root whose path is UTF-8") from error
    return root


def _has_own_teams(folder: Path) -> bool:
    home = folder / HOME
    try:
        unsafe = _unsafe_reason(home)
    except OSError:
        return False
    if unsafe is not None:
        _warn_once(f"skipped {str(home)!r}: it {unsafe}")
        return False
    return home.is_dir()


@functools.cache
def _warn_once(text: str) -> None:
    sys.stderr.write(f"warning: {text}\n")


def _require_directory(named: str | os.PathLike[str]) -> Path:
    try:
        root = Path(named).expanduser().resolve()
        # stat() itself, because from Python 3.13 on neither resolve() nor is_dir() raises for a loop of links.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if stat.S_ISDIR(root.stat().st_mode):
                return root
    # The name is too long, a loop of links, names an unknown user, or contains a NUL.
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"{str(named)!r} cannot be a root: {error}") from error
    raise UsageError(f"the root {root} is not a directory")


def team_directories(root: Path) -> list[TeamDirectory]:
    """Return every team of the root, sorted by name; symbolic links are left out.

    Raises:
        StorageError: The teams cannot be listed.
        UntrustedError: Another user controls the `.crewboard` of `root`.
    """
    return [team for team in _team_folders(root) if team.exists()]


def _team_folders(root: Path) -> list[TeamDirectory]:
    folders: list[Path] = []
    with files.storage_errors(f"cannot read {root / HOME}"), contextlib.suppress(FileNotFoundError):
        _require_own(root / HOME)
        named = (path for path in (root / HOME).iterdir() if is_name(path.name))
        folders = sorted(path for path in named if path.is_dir() and not path.is_symlink())
    return [*map(TeamDirectory, folders)]


def key_of(path: Path) -> Key:
    """Return the key of a file that is not part of a team, such as a file of the user."""
    return Key(FileStore(str(path.parent)), path.name)


def record_of(path: Path, model: type[R]) -> RecordKey[R]:
    """Return the key of a record in a file that is not part of a team. Its changes hold the file `lock` beside it."""
    return RecordKey(FileStore(str(path.parent)), path.name, model, "lock")
