"""Which processes hold the locks of a team."""

from crewboard.records.base import Record


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
