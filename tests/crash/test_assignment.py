"""Faults at each file operation of an assignment: whether killed or out of disk space, the work is done once."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from crewboard.errors import ExitCode
from crewboard.names import LEAD
from crewboard.records.events import ToolResult, ToolStart
from crewboard.store import mailbox, tasks
from crewboard.store.layout import TeamDirectory
from tests.crash.assignment import (
    READS,
    SCRIPT,
    ScriptedModel,
    TalkativeModel,
    arrange,
    check,
    check_request,
    events_of,
    mails,
    run,
    work_until_done,
)
from tests.crash.enumeration import new_team
from tests.crash.faults import Fault, Kind
from tests.store.raw_mail import append, line

pytestmark = pytest.mark.xdist_group("sdk")

CUT = ("tool_use", "max_tokens", "end_turn")
"""The second reply is cut off in the middle of its tool call."""


def hired(root: Path) -> TeamDirectory:
    team = new_team(root)
    arrange(team)
    return team


def at_each_operation(
    memory: Path,
    kind: Kind,
    model: Callable[[], ScriptedModel],
    look: Callable[[TeamDirectory, ScriptedModel], None],
    step: int,
    *,
    rest: bool = False,
) -> int:
    """Run once for every `step`th file operation of an undisturbed run, with a fault there; return how many ran.

    With `rest`, run for all others instead. A worker writes its status by the clock too, so a run may have an
    operation less.
    """
    reached = 0
    with mock.patch.object(os, "fsync"):
        calls, _ = work_until_done(hired(memory / "undisturbed"), model(), None)
        # Only a write can be short.
        operations = [each for each in enumerate(calls, start=1) if "short" not in kind or each[1] == "write"]
        chosen = operations[::step]
        for number, operation in [each for each in operations if each not in chosen] if rest else chosen:
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


REST = pytest.param(True, marks=pytest.mark.long, id="the rest")
"""What the default suite leaves out."""


# An append takes three operations and a replacement more, so every second one lies in each gap between two commits.
@pytest.mark.parametrize("rest", [False, REST])
@pytest.mark.parametrize(
    ("kind", "step", "least"),
    [
        pytest.param("killed after", 2, 100, marks=pytest.mark.long),
        ("short, killed", 2, 30),
        pytest.param("refused", 7, 100, marks=pytest.mark.long),
        pytest.param("full from here", 7, 100, marks=pytest.mark.long),
    ],
)
def test_an_assignment_is_done_once_despite_a_fault_anywhere(
    memory: Path, kind: Kind, step: int, least: int, rest: bool
) -> None:
    """Try at least `least` operations, every `step`th by default."""
    expected = least * (step - 1) // step if rest else least // step
    assert at_each_operation(memory, kind, ScriptedModel, check, step, rest=rest) >= expected


def both() -> ScriptedModel:
    """Return a model that reads at once before and after what it writes."""
    again = tuple({**call, "id": f"{call['id']}b"} for call in READS)
    return ScriptedModel(script=((*READS, *SCRIPT[0], *again), *SCRIPT[1:]))


def test_calls_that_only_read_begin_at_once_and_end_in_order(memory: Path) -> None:
    team = hired(memory / "undisturbed")
    model = both()
    assert run(team, model) == 0
    check(team, model)
    order = [
        (type(event).__name__, event.tool_use_id)
        for event in events_of(team)
        if isinstance(event, ToolStart | ToolResult) and event.tool_use_id.startswith("r")
    ]
    begun, ended = ("r1", "r2", "r4"), ("r1", "r2", "r3", "r4")
    assert order[:7] == [("ToolStart", each) for each in begun] + [("ToolResult", each) for each in ended]
    assert [each for _, each in order[7:]] == [f"{each}b" for each in (*begun, *ended)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "step", "rest", "least"),
    [
        ("killed after", 5, False, 30),
        pytest.param("killed after", 5, True, 100, marks=pytest.mark.long),
        pytest.param("refused", 2, False, 70, marks=pytest.mark.long),
        pytest.param("full from here", 2, False, 70, marks=pytest.mark.long),
    ],
)
def test_calls_at_once_are_journalled_once_despite_a_fault(
    memory: Path, kind: Kind, step: int, rest: bool, least: int
) -> None:
    assert at_each_operation(memory, kind, both, check, step, rest=rest) >= least


def check_burst(root: Path) -> None:
    """Send more mail than the context window holds: each message is shown whole, in order, once."""
    team = new_team(root)
    arrange(team)
    many = [f"b{number}" for number in range(600)]
    append(team.inbox("scout").on_disk, b"".join(line(ident, "text " * 50) + b"\n" for ident in many))
    model = TalkativeModel()
    assert run(team, model) == 0
    conversations = [asked for asked in model.asked if "Summarise the work" not in asked[-1]["content"][-1]["text"]]
    assert len(conversations) < len(model.asked), "there was no summary"
    for asked in conversations:
        assert max(Counter(mails(asked)).values(), default=1) == 1, "twice in one conversation"
    shown = dict.fromkeys(ident for asked in conversations for ident in mails(asked) if ident[0] == "b")
    assert list(shown) == many


def test_mail_beyond_the_context_window_is_shown_in_parts(memory: Path) -> None:
    check_burst(memory / "root")


@pytest.mark.long
@pytest.mark.parametrize(("rest", "least"), [(False, 16), pytest.param(True, 80, marks=pytest.mark.long)])
def test_an_interrupted_tool_call_is_never_run_by_the_next_run(memory: Path, rest: bool, least: int) -> None:
    def look(team: TeamDirectory, model: ScriptedModel) -> None:
        for asked in model.asked:
            check_request(asked)
        assert tasks.load(team, 1).status != "completed"
        assert any("the reply was cut off" in json.dumps(asked) for asked in model.asked)
        results = [mail.content for mail in mailbox.read(team, LEAD).messages if mail.type == "result"]
        assert results[0] == "it is done"

    assert at_each_operation(memory, "killed after", lambda: ScriptedModel(CUT), look, 6, rest=rest) > least


class UnsizedModel(ScriptedModel):
    """A model whose server never says how large its window is."""

    was_awaited = False

    async def learn_size(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            # The other task is the run.
            self.was_awaited = len(asyncio.all_tasks()) > 1


def test_a_run_waits_for_the_end_of_its_question_for_the_window(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crewboard.worker.loop.WINDOW_TIMEOUT", 0.0)
    model = UnsizedModel()
    assert run(hired(memory / "unsized"), model) == ExitCode.DONE
    assert model.was_awaited
