"""Exceptions and exit codes. Each error message says what happened, to what, and what to do next."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command and of every worker run (docs/reference/exit-codes.md)."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    BAD_DATA = 65
    API_UNAVAILABLE = 69
    INTERNAL = 70
    IO = 74
    TRY_LATER = 75
    NO_SANDBOX = 77
    CREDENTIALS = 78
    LIMIT = 79
    INTERRUPTED = 130
    TERMINATED = 143


def how_to_install(extra: str) -> str:
    """Return how to install crewboard with one of its extras, whose packages are missing."""
    return f"install crewboard with its extra `{extra}` (in a clone: pip install '.[{extra}]')"


class CrewboardError(Exception):
    """Base of all errors that the user sees as one sentence; `exit_code` is that of the command that fails with it."""

    exit_code = ExitCode.INTERNAL


class UsageError(CrewboardError):
    """The arguments are invalid: a bad name, an unknown recipient, a wrong type."""

    exit_code = ExitCode.USAGE


class BadDataError(CrewboardError):
    """A file, a line or an answer has invalid contents."""

    exit_code = ExitCode.BAD_DATA


class StorageError(CrewboardError):
    """A file could not be read or written: the disk is full, read-only or gone. Nothing was changed.

    If `away`, the team's database could not be reached or did not answer. The last write may then be stored or not.
    """

    exit_code = ExitCode.IO

    def __init__(self, text: str, *, away: bool = False) -> None:
        super().__init__(text)
        self.away = away


class LostLeaseError(CrewboardError):
    """This process may no longer write: its lease is lost, its files were replaced, or another process writes."""

    exit_code = ExitCode.IO


class TryLaterError(CrewboardError):
    """The command may succeed later: the agent is at work, it refused, or a wait timed out.

    The text is `why` and, behind it, `remedy`. The remedy may name an option of a command, so the dashboard shows its
    own key in place of the remedy.
    """

    exit_code = ExitCode.TRY_LATER

    def __init__(self, why: str, *, remedy: str = "") -> None:
        super().__init__(f"{why}; {remedy}" if remedy else why)
        self.why, self.remedy = why, remedy


class NoSandboxError(CrewboardError):
    """No sandbox works here that could hold this agent."""

    exit_code = ExitCode.NO_SANDBOX


class UntrustedError(CrewboardError):
    """A folder, socket or team is not the user's own, or the user has not accepted a type or a project's settings."""

    # EX_NOPERM, as for a missing sandbox: refused because continuing would not be safe.
    exit_code = ExitCode.NO_SANDBOX


class LimitError(CrewboardError):
    """A budget is used up, so nothing more is started."""

    exit_code = ExitCode.LIMIT


class CredentialsError(CrewboardError):
    """There is no API key, or the API does not accept it."""

    exit_code = ExitCode.CREDENTIALS
