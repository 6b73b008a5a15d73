"""What the operator can want of a lead, one thing each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CreateTeam:
    """Name and describe the team. The name is empty if none was said."""

    name: str
    description: str


@dataclass(frozen=True)
class Hire:
    """Hire somebody; with `anybody`, one of that type who is there and free will do."""

    name: str
    kind: str
    errand: str = ""
    background: bool = False
    plan: bool = False
    anybody: bool = False


@dataclass(frozen=True)
class Errand:
    """Work for somebody by name; with `plan`, one that needs an approved plan."""

    name: str
    text: str
    plan: bool = False


@dataclass(frozen=True)
class NewTask:
    """A task for the board, and whose it is: of somebody by name, or of anybody of a type."""

    subject: str
    description: str = ""
    owner: str = ""
    kind: str = ""
    blocked_by: tuple[int, ...] = ()


@dataclass(frozen=True)
class Assign:
    """A task that was just spoken of is for somebody by name, or for anybody of a type."""

    owner: str
    kind: str


@dataclass(frozen=True)
class Review:
    """Decide on a plan: whose, and which, as far as it was said. Without a decision it is only shown."""

    name: str = ""
    request_id: str = ""
    decision: bool | None = None
    feedback: str = ""
    every: bool = False


@dataclass(frozen=True)
class Shutdown:
    """Ask agents to shut down; nobody by name means everybody."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Broadcast:
    """Tell everybody."""

    content: str


@dataclass(frozen=True)
class ListTeam:
    """Say who is on the team."""


@dataclass(frozen=True)
class ReadInbox:
    """Say what mail there is."""


@dataclass(frozen=True)
class DeleteTeam:
    """End everybody else."""


@dataclass(frozen=True)
class Left:
    """Something that is to be left alone."""

    text: str


@dataclass(frozen=True)
class Other:
    """Something that no order of a lead is: work that it can do itself, perhaps."""

    text: str


Order = (
    CreateTeam | Hire | Errand | NewTask | Assign | Review | Shutdown | Broadcast | ListTeam | ReadInbox | DeleteTeam
    | Left | Other
)  # fmt: skip
