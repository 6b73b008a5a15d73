"""The commands `hosts up` and `hosts down`: an actor on each node of a Ray cluster keeps a host of the team alive.

This is the only module that imports Ray. No data of the team is kept in Ray, and nothing depends on what Ray believes:
of two hosts with the same name, only one gets the lease in the database.
"""

import contextlib
import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from crewboard.commands import context as commands_context
from crewboard.errors import ExitCode, UsageError, how_to_install
from crewboard.store import hosts
from crewboard.store.layout import TeamDirectory
from crewboard_tui.cli.common import Session, as_json, note

FOLDER = "~/crewboard-hosts"
"""The folder on each node that has the roots of hosts."""

UP_TIMEOUT = 60.0
DOWN_TIMEOUT = 45.0
"""Seconds to wait for hosts. A host drains for at most 30 s."""

_CONNECT_TIMEOUT = 5.0
_ASK_TIMEOUT = 20.0
_REPORT_TIMEOUT = 1.0
"""Seconds in which an actor must answer: one that may just be starting, and one that is asked again soon."""

_NAME_LENGTH = 32
_ID_LENGTH = 6

# Made here, because an actor brings only this module to its node.
_NO_PROGRAM = f"crewboard is not on the PATH: on the node, {how_to_install('hosts')}"


class NodeHost:
    """The actor on a node: runs `crewboard host` as a child, again after a crash, until it is asked to end.

    The node gets this class by value, so Ray's Python there needs no crewboard, only the program.
    """

    FIX_FIRST = (2, 77, 78)
    """Exit codes after which another attempt would fail as well."""

    PAUSE = 5.0
    """Seconds between two attempts."""

    LINGER = 30.0
    """Seconds for which the actor stays to tell how the host ended."""

    TAIL = 4000
    """Bytes at the end of the log in which the reason of a failure is searched."""

    TIE = (
        "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); "
        "os.getppid() == int(sys.argv[1]) or sys.exit(143); os.execv(sys.argv[2], sys.argv[2:])"
    )
    """A program that runs another one in its place.

    That one gets SIGTERM, and so drains, when the actor ends in any way.
    """

    def __init__(self, arguments: Sequence[str], root: str) -> None:
        self._arguments = arguments
        self._root = Path(root).expanduser()
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._drains = False
        self._code: int | None = None
        self._failure = ""
        self._ended = threading.Event()
        # To the kernel, the parent of the child is the thread that starts it. This one stays.
        threading.Thread(target=self._keep, daemon=True).start()

    def report(self) -> dict[str, Any]:
        """Return the pid of the last attempt, why one failed, and the exit code if there will be no other attempt."""
        pid = self._child.pid if self._child is not None else None
        return {"pid": pid, "failure": self._failure, "code": self._code}

    def drain(self, seconds: float) -> int | None:
        """Ask the host to end, and return its exit code; None if it has not ended after `seconds`."""
        with self._lock:
            self._drains = True
            if self._child is not None:
                self._child.terminate()
        self._ended.wait(seconds)
        return self._code

    def leave(self) -> None:
        """End the actor, so that Ray does not start it again."""
        import ray

        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    def _keep(self) -> None:
        while True:
            try:
                code = self._run()
            except OSError as error:
                code, self._failure = 2, str(error)
            if code == 0 or code in self.FIX_FIRST or self._drains:
                break
            time.sleep(self.PAUSE)
        self._code = code
        self._ended.set()
        time.sleep(self.LINGER)
        self.leave()

    def find_program(self) -> str | None:
        """Return the program beside Ray's Python, else the one on the PATH of the node; None if there is none."""
        beside = Path(sys.executable).with_name("crewboard")
        return str(beside) if os.access(beside, os.X_OK) else shutil.which("crewboard")

    def _run(self) -> int:
        program = self.find_program()
        if program is None:
            raise FileNotFoundError(_NO_PROGRAM)
        # What Ray sets is meant for its own workers; an empty list of devices would hide those of the node.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("RAY_") and (name, value) != ("CUDA_VISIBLE_DEVICES", "")
        }
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._root / "host.log").open("a+b") as log:
            begin = log.seek(0, os.SEEK_END)
            with self._lock:
                if self._drains:
                    return 0
                self._child = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", self.TIE, str(os.getpid()), program, *self._arguments],
                    cwd=self._root,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            code = self._child.wait()
            log.seek(max(begin, log.seek(0, os.SEEK_END) - self.TAIL))
            said = log.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        if code != 0:
            self._failure = said or f"it ended with {code}"
        return code


@dataclass(frozen=True)
class Node:
    """A living node of the cluster, and the name of its host."""

    id: str
    address: str
    host: str


@dataclass
class Started:
    """The outcome of `hosts up` for one node."""

    host: str
    node: str
    state: str = "failed"
    """`up` or `failed`."""
    was_there: bool = False
    seconds: float = 0.0
    failure: str = ""
    code: int | None = None
    """The exit code of the host if there will be no other attempt; else None."""

    def describe(self) -> str:
        """Return the outcome as a line for the user."""
        if self.state == "up":
            return f"{self.host} on {self.node} {'was up' if self.was_there else f'is up after {self.seconds} s'}"
        why = self.failure or "not up in time; host.log in its root says why"
        return f"{self.host} on {self.node} failed: {why}"


class Cluster:
    """The actors of one team in the Ray cluster at `address`."""

    def __init__(self, ray: Any, directory: TeamDirectory, address: str) -> None:  # noqa: ANN401  untyped
        self._ray = ray
        self._team = directory.path.name
        url = directory.address
        if url is None:
            raise UsageError(
                f"the team {self._team} is kept in files, so its agents run on one machine: hosts need a team in "
                "PostgreSQL, `crewboard team create NAME --store postgresql://USER@HOST/DATABASE`"
            )
        self.url = url
        # Teams of one name in other databases are other teams.
        digest = hashlib.sha256(url.encode()).hexdigest()[:12]
        namespace = f"crewboard-{self._team}-{digest}"
        try:
            # Where nothing listens, Ray would try for minutes.
            host, colon, port = address.rpartition(":")
            if colon and port.isdecimal():
                socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT).close()
            self._ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="ERROR")
        # Which errors Ray raises here differs between its versions and ways to connect.
        except Exception as error:
            raise UsageError(
                f"no Ray cluster can be reached at {address} ({str(error).strip().partition(chr(10))[0]}): run this on "
                "a node of it, such as its head"
            ) from error

    def nodes(self) -> list[Node]:
        """Return the living nodes, sorted by the names of their hosts."""
        alive = [each for each in self._ray.nodes() if each["Alive"]]
        found = [
            Node(each["NodeID"], each["NodeManagerAddress"], host_name(each["NodeManagerHostname"], each["NodeID"]))
            for each in alive
        ]
        return sorted(found, key=lambda node: node.host)

    def actor(self, host: str) -> Any | None:  # noqa: ANN401  Ray's handle
        """Return the actor that keeps a host; None if there is none."""
        try:
            return self._ray.get_actor(self._named(host))
        except ValueError:
            return None

    def is_free(self, host: str) -> bool:
        """Return True if no actor keeps a host."""
        return self.actor(host) is None

    def hosts(self) -> list[str]:
        """Return the names of the hosts that have actors, sorted."""
        names = self._ray.util.list_named_actors()
        return sorted(name.removeprefix(self._named("")) for name in names if name.startswith(self._named("")))

    def start(self, node: Node, arguments: Sequence[str], root: str) -> Any:  # noqa: ANN401  Ray's handle
        """Start and return the actor of a node, which outlives this process and is started again by Ray."""
        scheduling = self._ray.util.scheduling_strategies
        actor = self._ray.remote(NodeHost).options(
            name=self._named(node.host),
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            # A report is given while another call drains.
            max_concurrency=4,
            scheduling_strategy=scheduling.NodeAffinitySchedulingStrategy(node.id, soft=False),
        )
        return actor.remote(list(arguments), root)

    def ask(self, call: Any, seconds: float) -> Any | None:  # noqa: ANN401  Ray's
        """Return the answer to a call of an actor; None if there is none within `seconds`, or the actor has ended."""
        try:
            return self._ray.get(call, timeout=seconds)
        except (self._ray.exceptions.RayError, TimeoutError):
            return None

    def end(self, actor: Any) -> None:  # noqa: ANN401  Ray's handle
        """End an actor for good."""
        with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(actor, no_restart=True)

    def _named(self, host: str) -> str:
        return f"crewboard-{self._team}-{host}"


def host_name(machine: str, node: str) -> str:
    """Return the name of a node's host: the name of the `machine`, and a part of the id `node`.

    The id is needed because a machine may have several nodes.
    """
    words = re.sub(r"[^a-z0-9]+", "-", machine.partition(".")[0].lower()).strip("-")
    begin = words if words[:1].isalpha() else f"node-{words}".rstrip("-")
    return f"{begin[: _NAME_LENGTH - _ID_LENGTH - 1].rstrip('-')}-{node[:_ID_LENGTH]}"


@contextlib.contextmanager
def _cluster(session: Session, address: str) -> Iterator[Cluster]:
    try:
        import ray
        import ray.util.scheduling_strategies
        from ray import cloudpickle
    except ImportError as error:
        raise UsageError(f"Ray cannot be loaded ({error}): {how_to_install('ray')}") from error
    directory = session.team.directory
    directory.require_adopted()
    cluster = Cluster(ray, directory, address)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        # Ray prints what it notices, such as the death of a node, while stdout is for results.
        with contextlib.redirect_stdout(sys.stderr):
            yield cluster
    finally:
        ray.shutdown()


_address = click.option(
    "--ray", "address", metavar="ADDRESS", required=True, help="The Ray cluster: auto or HOST:PORT."
)


@click.command()
@_address
@click.option("--slots", type=click.IntRange(min=1), metavar="N", help="How many agents each host runs at most.")
@click.option("--label", "labels", multiple=True, metavar="L", help="What agents can need; repeatable.")
@click.option(
    "--folder", metavar="DIR", default=FOLDER, show_default=True, help="The folder of hosts' roots on each node."
)
@as_json
def up(session: Session, address: str, slots: int | None, labels: tuple[str, ...], folder: str) -> None:
    """Start a host of the team on each node of a Ray cluster that has none.

    A detached actor on each node runs `crewboard host` and starts it again after a crash. Nodes need crewboard
    with its extra `hosts`, the API key in the environment of `ray start`, and a way to the database. New nodes get a
    host when you call this again. Run this on a node of the cluster.
    """
    options = [*(["--slots", str(slots)] if slots else []), *(word for label in labels for word in ("--label", label))]
    with _cluster(session, address) as cluster:
        team = session.team
        began = time.monotonic()
        offline = ["--offline"] if team.offline else []
        before = ["--root", ".", "--team", team.directory.path.name, *offline, "host", "--store", cluster.url]
        begun = []
        for node in cluster.nodes():
            known = cluster.actor(node.host)
            report = cluster.ask(known.report.remote(), _ASK_TIMEOUT) if known is not None else None
            if report is not None and report["code"] is not None:
                # Its host has ended, and the actor only tells how.
                cluster.end(known)
                commands_context.wait_until(partial(cluster.is_free, node.host), _ASK_TIMEOUT)
                known = None
            arguments = [*before, "--name", node.host, *options]
            actor = known if known is not None else cluster.start(node, arguments, f"{folder}/{node.host}")
            begun.append((Started(node.host, node.address, was_there=known is not None), actor))

        def are_settled() -> bool:
            # Each is looked at, also behind one that is not up yet.
            found = [_is_settled(team.directory, cluster, each, actor, began) for each, actor in begun]
            return all(found)

        commands_context.wait_until(are_settled, UP_TIMEOUT)
        started = [each for each, _ in begun]
    session.tell([asdict(each) for each in started], *(each.describe() for each in started))
    if any(each.code == ExitCode.CREDENTIALS for each in started):
        note("a host takes the key from the environment of its node: set it where `ray start` runs")
    if any(each.state == "failed" for each in started):
        raise click.exceptions.Exit(ExitCode.TRY_LATER)


def _is_settled(
    directory: TeamDirectory,
    cluster: Cluster,
    started: Started,
    actor: Any,  # noqa: ANN401  Ray's handle
    began: float,
) -> bool:
    """Return True if a host is up, or has ended for good, and note that in `started`.

    `began` is the time of the start (monotonic).
    """
    if started.state == "up":
        return True
    report = cluster.ask(actor.report.remote(), _REPORT_TIMEOUT)
    if report is None:
        is_gone = started.host not in {node.host for node in cluster.nodes()}
        started.failure = "the node has left the cluster" if is_gone else ""
        return is_gone
    started.failure, started.code = report["failure"], report["code"]
    record = hosts.load(directory, started.host)
    # The lease of one that was killed lasts for some seconds.
    if record is not None and record.pid == report["pid"] and hosts.is_up(directory, started.host):
        started.state, started.seconds, started.failure = "up", round(time.monotonic() - began, 1), ""
        return True
    return started.code is not None


@click.command()
@_address
@as_json
def down(session: Session, address: str) -> None:
    """Drain the hosts that `hosts up` started, and end their actors.

    A host that drains asks its agents to shut down, and ends after 30 s at most. The agents are stopped then; `resume`
    continues them on other hosts.
    """
    with _cluster(session, address) as cluster:
        actors = {host: cluster.actor(host) for host in cluster.hosts()}
        living = {node.host for node in cluster.nodes()}
        calls = {
            host: actor.drain.remote(DOWN_TIMEOUT)
            for host, actor in actors.items()
            if actor is not None and host in living
        }
        codes = {host: cluster.ask(call, DOWN_TIMEOUT + _ASK_TIMEOUT) for host, call in calls.items()}
        for actor in actors.values():
            cluster.end(actor)
    how = {
        host: "drained" if code == 0 else "ended" if code is not None else "did not answer"
        for host, code in codes.items()
    }
    session.tell(
        [{"host": host, "code": code} for host, code in codes.items()],
        *(f"{host}: {ended}" for host, ended in how.items()),
    )
    if not (codes or session.as_json):
        note(f"no host of this team was started with `hosts up` at {address}")
