"""Records of processes and hosts: who holds a lease, what a host offers, which runs wait, and how a run ended."""

from typing import Annotated

from msgspec import Meta

from crewboard.records.base import Name, Record, Time


class Lease(Record):
    """The contents of a lease: the identity of the process that holds it and, on a team with hosts, its host."""

    pid: int
    run: int = 0
    boot_id: str = ""
    start_ticks: int = 0
    host: str = ""
    lost: bool = False
    """True if the holder ended because the lease was no longer at its path."""


class Supervisor(Record):
    """`supervisor.lock`: the identity of the supervisor's process, and the socket on which it listens."""

    pid: int
    socket: str = ""
    boot_id: str = ""
    start_ticks: int = 0


class ModelServerInfo(Record):
    """`model.lock`: the process that serves the offline model to this team, and the base URL of its API."""

    pid: int
    url: str


class Usage(Record):
    """What an agent uses on its host: percent of one core, bytes of memory, and processes below its worker."""

    cpu: float = 0
    memory: int = 0
    children: int = 0


ENGINE_LABEL = "engine:"
"""The beginning of the label that a host has for an engine; the engine's name follows."""


class Host(Record):
    """`hosts/NAME/host.json`: what a host offers, and what it last measured, `at` that time.

    It runs at most `slots` agents at once. `labels` are those that the user gave it, `engines` the known engines on its
    PATH. `machine` is the name of its machine, which has `cores`, a `load` (the average of one minute) and `memory`
    bytes. A host that is `draining` takes no more agents. `clock_offset` is how many seconds its clock is ahead of the
    store's. `usage` is that of its agents. If `offline`, its agents use the offline model.
    """

    name: Name
    slots: Annotated[int, Meta(ge=1)]
    labels: list[Name] = []
    engines: list[Name] = []
    machine: str = ""
    version: str = ""
    pid: int = 0
    boot_id: str = ""
    start_ticks: int = 0
    cores: int = 0
    load: float = 0
    memory: int = 0
    clock_offset: float = 0
    draining: bool = False
    offline: bool = False
    since: Time = 0
    at: Time = 0
    usage: dict[Name, Usage] = {}

    @property
    def offers(self) -> list[str]:
        """Return the labels that the user gave the host, and one label for each of its engines."""
        return [*self.labels, *(f"{ENGINE_LABEL}{name}" for name in self.engines)]


class WantedRun(Record):
    """`starts/AGENT.json`: a run that no host has claimed yet; after that, the same record in a folder of its host.

    `needs` are labels that the host must have. Among the labels of a host are `host:` and its name, and `engine:` and
    the name of each engine on its PATH.
    """

    agent: Name
    run: Annotated[int, Meta(ge=1)]
    needs: list[str] = []
    at: Time = 0


class SupervisorFailure(Record):
    """`supervisor-failure.json`: the place in the code where the supervisor last failed, how often, and the agent.

    `agent` is empty if the failure had nothing to do with a single agent.
    """

    place: str
    error: str
    agent: str = ""
    count: int = 1
    since: Time = 0
    at: Time = 0


MOST_RESTARTS = 3
"""Most restarts of an agent within ten minutes; after them it is not restarted again."""


class HeldStart(Record):
    """A run that the supervisor does not begin yet, because of `reason`.

    `attempt` is the number of a restart, which begins at `due`; 0 for a run that waits in the queue. `provided` is
    False if the supervisor lacks the environment of the run, with its API key, because it took over from a supervisor
    that was killed. `for_host` is True for a run that no host has claimed yet.
    """

    name: Name
    run: int
    since: Time = 0
    reason: str = ""
    due: Time = 0
    attempt: int = 0
    provided: bool = True
    for_host: bool = False


class HeldStarts(Record):
    """`starts.json`: the runs that wait, in the order in which they will begin.

    `restarts` are the times of recent restarts, by agent.
    """

    held: list[HeldStart] = []
    restarts: dict[Name, list[Time]] = {}

    def find(self, name: str, run: int) -> HeldStart | None:
        """Return this run's entry; None if the run does not wait."""
        return next((each for each in self.held if (each.name, each.run) == (name, run)), None)

    def place(self, name: str, run: int) -> int:
        """Return the place of a run in the queue, from 1 on; 0 if it is not in the queue."""
        queue = [(each.name, each.run) for each in self.held if not each.attempt]
        return queue.index((name, run)) + 1 if (name, run) in queue else 0

    def describe(self, name: str, run: int, now: float) -> str:
        """Return in words why a run waits; empty if it does not.

        Examples: `queued 2nd: max_agents 4 reached`, `restarts in 4 s (2 of 3): killed by SIGKILL`, `queued: waits for
        a host with gpu`.
        """
        found = self.find(name, run)
        if found is None:
            return ""
        if found.for_host:
            return f"queued: {found.reason}"
        place = self.place(name, run)
        ending = "th" if place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
        text = f"queued {place}{ending}: {found.reason}"
        if found.attempt:
            text = f"restarts in {max(0, found.due - now):.0f} s ({found.attempt} of {MOST_RESTARTS}): {found.reason}"
        return text if found.provided else f"{text}; resume it, its environment was lost with the supervisor"


class Exit(Record):
    """`exit.json`: how a run ended.

    `reason` is a key of `EXIT_REASONS`; `code` or `signal` is None if it is not known. `buried` is True once the end
    was finalized. With the reason `lost`, `evidence` says in words why the agent's host counts as lost; empty without a
    host. `unfinished`: an assignment was in progress, or had not begun.
    """

    run: int
    code: int | None = None
    signal: int | None = None
    reason: str = ""
    at: Time = 0
    buried: bool = False
    evidence: str = ""
    unfinished: bool = False
    notice: str = ""
    """The id of the notice that tells the team about all runs lost with the same host; empty if this run has
    a notice of its own.
    """


EXIT_REASONS = {
    "finished": "done with what it was hired for",
    "shutdown": "agreed to shut down",
    "killed": "ended by the operator",
    "host_ended": "its host ended",
    "turn_limit": "reached its turn limit",
    "budget": "reached its budget",
    "memory": "used more memory than its limit",
    "failed": "ended with an error",
    "api_unavailable": "the API stayed unavailable",
    "credentials": "its credentials or its server's address cannot be used",
    "no_sandbox": "no sandbox is available",
    "internal": "an error in crewboard",
    "storage": "a file could not be written",
    "terminated": "ended by a signal",
    "died": "ended unexpectedly",
    "reboot": "the machine went down",
    "lost": "its directory was moved, or its lease removed or replaced",
    "exported": "still ran when its team was exported",
    "gone": "its process is gone",
}
"""Reasons for the end of a run: the key in `exit.json`, and the text that users see."""

VANISHED = "killed or crashed without a supervisor"
"""The text for a run of whose end neither exit code nor signal is known."""

LIMIT_REASONS = frozenset({"turn_limit", "budget"})
"""Reasons after which the assignment continues once the limit is raised."""

ORDERLY_REASONS = frozenset({"finished", "shutdown", "killed", "host_ended", "exported", *LIMIT_REASONS})
"""Reasons of an orderly end, with any exit code: it was requested, a limit caused it, or an import recorded it."""


def ended_by_shutdown(record: Exit, run_boot_id: str, boot_id: str) -> bool:
    """Return True if a shutdown of the machine ended the run: it sends SIGTERM to every process first.

    The supervisor got the signal too, so it did not finalize the end. `run_boot_id` is the id of the boot in which the
    run began, `boot_id` that of the present one.
    """
    return record.reason == "terminated" and not record.buried and run_boot_id not in ("", boot_id)


def is_orderly(record: Exit) -> bool:
    """Return True if the run did not crash: it finished, or a request, a limit, a reboot or a moved folder ended it.

    A run whose host was lost did crash, and so did one whose assignment a moved folder cut off.
    """
    if record.reason == "lost" and (record.evidence or record.unfinished):
        return False
    return record.reason in (*ORDERLY_REASONS, "reboot", "lost") or (record.code == 0 and not record.signal)


def was_cut_off(record: Exit) -> bool:
    """Return True if the agent was at work when its host ended. The end was requested, so it is no crash."""
    return record.reason == "host_ended" and record.unfinished


def has_vanished(record: Exit) -> bool:
    """Return True if neither the exit code nor the signal of a run that ended is known."""
    return record.reason == "died" and record.code is None and record.signal is None


def describe_exit(record: Exit) -> str:
    """Return in words how a run ended, such as `killed by SIGKILL`."""
    if record.reason == "lost" and record.evidence:
        return f"its host was lost: {record.evidence}"
    if was_cut_off(record):
        return "its host ended while it was at work"
    words = VANISHED if has_vanished(record) else EXIT_REASONS.get(record.reason, record.reason)
    if record.signal and record.reason not in (*ORDERLY_REASONS, "memory"):
        return f"killed by {signal_name(record.signal)}"
    if record.code and record.reason not in (*ORDERLY_REASONS, "lost", "reboot"):
        return f"exit {record.code}: {words}"
    return words


def signal_name(number: int) -> str:
    """Return the name of a signal, such as `SIGKILL` for 9; `signal NUMBER` if it has none."""
    # Imported here because it is needed for the name of a signal only, and rarely.
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
