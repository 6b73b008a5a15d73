"""The start of a run: when it counts as under way, late or failed."""

from crewboard.records import Spec

LATE_AFTER = 30.0
"""Seconds after which readers report a start as failed."""

START_TIMEOUT = 60.0
"""Seconds for which a start counts as under way. Importing the SDK takes one, on a busy machine many."""


def is_starting(spec: Spec, last_run: int, now: float) -> bool:
    """Return True if the desired run has not begun but still may. `last_run` is the newest run that began."""
    return spec.want == "running" and spec.run > last_run and now - spec.at < START_TIMEOUT


def is_late(spec: Spec, now: float) -> bool:
    """Return True if a run that has not begun should have by now."""
    return now - spec.at > LATE_AFTER
