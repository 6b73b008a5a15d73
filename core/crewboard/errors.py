"""What can go wrong, as one small tree: each error names what happened, to what, and what to do next."""

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


class CrewboardError(Exception):
    """Base of all errors that a person is shown as one sentence; `exit_code` is what the command ends with."""

    exit_code = ExitCode.INTERNAL


class UsageError(CrewboardError):
    """The caller asked for something that cannot be: a bad name, an unknown recipient, a wrong type."""

    exit_code = ExitCode.USAGE


class BadDataError(CrewboardError):
    """A file, a line or an answer does not say what it should."""

    exit_code = ExitCode.BAD_DATA


class StorageError(CrewboardError):
    """The disk refused: full, read-only, or gone. What was asked for did not happen."""

    exit_code = ExitCode.IO


class TryLaterError(CrewboardError):
    """Not now: the agent is at work, refused, or a wait timed out."""

    exit_code = ExitCode.TRY_LATER


class NoSandboxError(CrewboardError):
    """No kernel mechanism can hold this agent in."""

    exit_code = ExitCode.NO_SANDBOX


class UntrustedError(CrewboardError):
    """A team directory or a supervisor is not this user's own: nothing is read from it or sent to it."""

    # EX_NOPERM, as for a missing sandbox: refused because going on would not be safe.
    exit_code = ExitCode.NO_SANDBOX


class CredentialsError(CrewboardError):
    """No API key, or one that the API does not accept."""

    exit_code = ExitCode.CREDENTIALS
