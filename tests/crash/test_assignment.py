"""Faults at each file operation of an assignment: whether killed or out of disk space, the work is done once."""

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from crewboard.names import LEAD
from crewboard.store import mailbox, tasks
from crewboard.store.layout import TeamDirectory
from tests.crash.assignment import (
    ScriptedModel,
    TalkativeModel,
    arrange,
    check,
    check_request,
    mails,
    run,
    work_until_done,
)
from tests.crash.enumeration import new_team
from tests.crash.faults import Fault, Kind
from tests.store.raw_mail import append, line

CUT = ("tool_use", "max_tokens", "end_turn")
"""The second reply is cut off in the middle of its tool call."""


def hired(root: Path) -> TeamDirectory:
    team = new_team(root)
    arrange(team)
    return team


def at_each_operation(
    memory: Path, kind: Kind, model: Callable[[], ScriptedModel], look: Callable[[TeamDirectory, ScriptedModel], None]
) -> int:
    """Run once for every file operation of an undisturbed run, with a fault there; return how many were reached.

    A worker writes its status by the clock too, so a run may have an operation less.
    """
    reached = 0
    with mock.patch.object(os, "fsync"):
        calls, _ = work_until_done(hired(memory / "undisturbed"), model(), None)
        for number, operation in enumerate(calls, start=1):
            if "short" in kind and operation != "write":
                continue
            fault, asked, team = Fault(number, kind, "all but a byte"), model(), hired(memory / str(number))
            try:
                made, ends = work_until_done(team, asked, fault)
                reached += number <= len(made)
                assert ends[-1] == 0
                assert len(ends) <= 2
                look(team, asked)
            except AssertionError as error:
                raise AssertionError(f"{fault} ({operation}): {error}") from error
    return reached


def test_an_undisturbed_assignment_is_done_in_three_calls(memory: Path) -> None:
    model, team = ScriptedModel(), hired(memory / "undisturbed")
    calls, ends = work_until_done(team, model, None)
    assert ends == [0]
    check(team, model)
    assert len(model.asked) == 3
    assert len(calls) > 100


@pytest.mark.parametrize(
    ("kind", "least"), [("killed after", 100), ("short, killed", 30), ("refused", 100), ("full from here", 100)]
)
def test_an_assignment_is_done_once_despite_a_fault_anywhere(memory: Path, kind: Kind, least: int) -> None:
    assert at_each_operation(memory, kind, ScriptedModel, check) >= least


def check_burst(root: Path) -> None:
    """Send more mail than the context window holds: each message is shown whole, in order, once."""
    team = new_team(root)
    arrange(team)
    many = [f"b{number}" for number in range(600)]
    append(team.inbox("scout"), b"".join(line(ident, "text " * 50) + b"\n" for ident in many))
    model = TalkativeModel()
    assert run(team, model) == 0
    conversations = [asked for asked in model.asked if not asked[0]["content"][0]["text"].startswith("Summarise")]
    for asked in conversations:
        assert max(Counter(mails(asked)).values(), default=1) == 1, "twice in one conversation"
    shown = dict.fromkeys(ident for asked in conversations for ident in mails(asked) if ident[0] == "b")
    assert list(shown) == many


def test_mail_beyond_the_context_window_is_shown_in_parts(memory: Path) -> None:
    check_burst(memory / "root")


def test_an_interrupted_tool_call_is_never_run_by_the_next_run(memory: Path) -> None:
    def look(team: TeamDirectory, model: ScriptedModel) -> None:
        for asked in model.asked:
            check_request(asked)
        assert tasks.load(team, 1).status != "completed"
        assert any("the reply was cut off" in json.dumps(asked) for asked in model.asked)
        results = [mail.content for mail in mailbox.read(team, LEAD).messages if mail.type == "result"]
        assert results[0] == "it is done"

    assert at_each_operation(memory, "killed after", lambda: ScriptedModel(CUT), look) > 100
