"""One command for several agents at once, and one sentence about what became of it."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from crewboard.errors import CrewboardError, TryLaterError


def run_for_each(names: Sequence[str], command: Callable[[str], str], done: str) -> str:
    """Run `command` for each of `names`; for one it returns the command's own sentence, else `3 DONE: a, b, c`.

    Raises:
        CrewboardError: What the command raised for the only one.
        TryLaterError: It failed for some; the message says for which, and why.
    """
    if len(names) == 1:
        return command(names[0])
    with ThreadPoolExecutor(max_workers=max(1, len(names))) as pool:
        runs = {name: pool.submit(command, name) for name in names}
    failed = {name: why for name, run in runs.items() if (why := _why_not(run)) is not None}
    worked = [name for name in names if name not in failed]
    if not failed:
        return f"{len(names)} {done}: {', '.join(names)}"
    reasons = "; ".join(f"{name}: {why}" for name, why in failed.items())
    raise TryLaterError(
        f"{len(worked)} of {len(names)} {done}{': ' if worked else ''}{', '.join(worked)}; not {reasons}"
    )


def _why_not(run: Future[str]) -> str | None:
    """Return why a command failed; a bug is raised."""
    try:
        run.result()
    except (CrewboardError, OSError) as error:
        return str(error)
    return None
