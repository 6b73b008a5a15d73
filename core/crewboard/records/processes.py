"""Processes of a team: which one holds a lock, and how the run of an agent ended."""

from crewboard.records.base import Record, Time


class Lease(Record):
    """What the holder of a lease writes into it: which process it is."""

    pid: int
    run: int = 0
    boot_id: str = ""
    start_ticks: int = 0


class Supervisor(Record):
    """What `supervisor.lock` says; `model` is the embedded model's base URL while it is up."""

    pid: int
    socket: str = ""
    boot_id: str = ""
    start_ticks: int = 0


class ModelServerInfo(Record):
    """What `model.lock` says: who serves the embedded model to this team, and its base URL."""

    pid: int
    url: str


class Exit(Record):
    """`exit.json`: how a run ended.

    `reason` is one of the words of `EXIT_REASONS`. `buried` says that the rest of the team was told.
    """

    run: int
    code: int | None = None
    signal: int | None = None
    reason: str = ""
    at: Time = 0
    buried: bool = False


EXIT_REASONS = {
    "finished": "done with what it was hired for",
    "shutdown": "agreed to shut down",
    "killed": "ended by the operator",
    "turn_limit": "reached its turn limit",
    "budget": "reached its budget",
    "failed": "could not go on",
    "api_unavailable": "the API stayed unavailable",
    "credentials": "the API refused its credentials",
    "no_sandbox": "nothing here can hold it in",
    "internal": "an error in crewboard",
    "storage": "the disk refused",
    "terminated": "told to end by a signal",
    "died": "ended unexpectedly",
    "reboot": "the machine went down",
}
"""Why a run ended, as `exit.json` says it and as a person reads it."""

VANISHED = "killed or crashed while nobody watched"
"""How a run ended of which neither code nor signal is known."""

ORDERLY_REASONS = frozenset({"finished", "shutdown", "killed", "turn_limit", "budget"})
"""Reasons that are an orderly end whatever the exit code says: somebody asked, or a limit ended it."""


def is_orderly(record: Exit) -> bool:
    """Whether a run ended as it should: somebody asked, a limit ended it, the machine went down, or it was done."""
    return record.reason in (*ORDERLY_REASONS, "reboot") or (record.code == 0 and not record.signal)


def has_vanished(record: Exit) -> bool:
    """Whether a run ended of which neither code nor signal is known."""
    return record.reason == "died" and record.code is None and record.signal is None


def describe_exit(record: Exit) -> str:
    """How a run ended, in words: `killed by SIGKILL`, `exit 1: could not go on`."""
    words = VANISHED if has_vanished(record) else EXIT_REASONS.get(record.reason, record.reason)
    if record.signal and record.reason not in ORDERLY_REASONS:
        return f"killed by {signal_name(record.signal)}"
    if record.code and record.reason not in ORDERLY_REASONS:
        return f"exit {record.code}: {words}"
    return words


def signal_name(number: int) -> str:
    """`SIGKILL` for 9."""
    import signal  # the name alone is needed, and seldom

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
