"""Why a task failed, in the words of whoever had it. The record of a task does not say; its owner's journal may."""

from collections.abc import Sequence
from itertools import takewhile

from crewboard.readmodel.activity import Activity
from crewboard.records import Task

WITHIN = 5.0
"""Seconds before a task failed within which an assignment that ended without a word about it was the reason."""

_ENDS = ("answer", "error")


def why_failed(task: Task, activity: Sequence[Activity]) -> str | None:
    """What its owner said of it, as far as the owner's `activity` tells."""
    at = max((at for at, what in enumerate(activity) if what.fails_task == task.id), default=None)
    if at is None:
        before = [what for what in activity if what.ts <= task.updated_at]
        return before[-1].text if before and _is_the_reason(before[-1], task) else None
    return _said_after(activity[at + 1 :]) or _said_with(activity[:at])


def _said_with(before: Sequence[Activity]) -> str | None:
    """What it said in the same breath; what stands before another call was about that one."""
    return before[-1].text if before and before[-1].kind == "say" else None


def _said_after(activity: Sequence[Activity]) -> str | None:
    """How the assignment ended that this is the rest of; None where it goes on, or its run was over before."""
    rest_of_run = takewhile(lambda what: what.kind != "start", activity)
    return next((what.text for what in rest_of_run if what.kind in _ENDS), None)


def _is_the_reason(what: Activity, task: Task) -> bool:
    return what.kind in _ENDS and task.updated_at - what.ts < WITHIN
