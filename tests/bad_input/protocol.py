"""Commands and answers that do not fit the state of the team."""

import pytest

from crewboard.errors import UsageError
from crewboard.store import tasks
from tests.bad_input.bench import SPAWN, Bench, Entry, after, refused


def _decided(bench: Bench) -> None:
    bench.ask()
    assert bench.cli("approve", "plan-1").code == 0


def _claims_that_cannot_be(bench: Bench) -> None:
    tasks.add(bench.team, "second", 1.0, owner="fixer", required_type="test", blocked_by=[1])
    for name, kind, words in (
        ("scout", "test", "assigned to fixer"),
        ("fixer", "code", "type test"),
        ("fixer", "test", "blocked by 1"),
    ):
        with pytest.raises(UsageError, match=words):
            tasks.claim(bench.team, 2, name, kind, 2.0)
    assert tasks.load(bench.team, 2).status == "pending"


PROTOCOL = (
    Entry(
        "protocol",
        "an answer to a request that is not there",
        "changes nothing (65)",
        refused(65, "there is no request plan-9", "approve", "plan-9"),
    ),
    Entry(
        "protocol",
        "a second answer",
        "changes nothing (65), says who was first",
        after(_decided, refused(65, "already approved by operator", "reject", "plan-1", "--feedback", "no")),
    ),
    Entry(
        "protocol",
        "an answer to a plan that has changed since it was seen",
        "changes nothing (65)",
        after(Bench.ask, refused(65, "has another sha256", "approve", "plan-1", "--sha256", "0" * 64)),
    ),
    Entry(
        "protocol",
        "a plan that is answered like a question",
        "changes nothing (65)",
        after(Bench.ask, refused(65, "cannot be answered", "answer", "plan-1", "yes")),
    ),
    Entry(
        "protocol",
        "a question that is approved",
        "changes nothing (65)",
        after(lambda bench: bench.ask("q1", "question"), refused(65, "cannot be approved", "approve", "q1")),
    ),
    Entry(
        "protocol",
        "a permission that is edited",
        "changes nothing (65)",
        after(
            lambda bench: (bench.ask("p1", "permission"), (bench.root / "plan").write_text("x")),
            refused(65, "only a plan can be edited", "approve", "p1", "--edited-file", "plan"),
        ),
    ),
    Entry(
        "protocol",
        "an edited plan that is empty",
        "refuses it (2)",
        after(
            lambda bench: (bench.ask(), (bench.root / "plan").write_text(" \n")),
            refused(2, "is empty", "approve", "plan-1", "--edited-file", "plan"),
        ),
    ),
    Entry(
        "protocol",
        "a rejection without feedback",
        "refuses it (2)",
        after(Bench.ask, refused(2, "needs feedback", "reject", "plan-1", "--feedback", " ")),
    ),
    Entry("protocol", "a task claimed by the wrong one", "refuses each, in words", _claims_that_cannot_be),
    Entry("protocol", "a task without a subject", "refuses it (2)", refused(2, "needs a subject", "task", "add", "  ")),
    Entry(
        "protocol",
        "a task blocked by one that is not there",
        "refuses it (2)",
        refused(2, "there is no task 9", "task", "add", "x", "--blocked-by", "9"),
    ),
    Entry(
        "protocol",
        "a status that is none",
        "refuses it (2)",
        refused(2, "--status", "task", "update", "1", "--status", "done"),
    ),
    Entry(
        "protocol",
        "the task 0",
        "refuses it (2)",
        refused(2, "not a task id", "task", "update", "0", "--status", "failed"),
    ),
    Entry(
        "protocol",
        "a task id of 400 digits",
        "refuses it (2)",
        refused(2, "not a task id", "task", "update", "9" * 400, "--status", "failed"),
    ),
    Entry(
        "protocol",
        "a task in progress without an owner",
        "refuses it (2)",
        refused(2, "task 1 has no owner", "task", "update", "1", "--status", "in_progress"),
    ),
    Entry(
        "protocol",
        "an agent of a type that is none",
        "refuses it (2), lists them",
        refused(2, "'wizard'", "spawn", "new", "--type", "wizard", "--prompt", "x"),
    ),
    Entry(
        "protocol",
        "an agent without a prompt",
        "refuses it (2)",
        refused(2, "needs a prompt", "spawn", "new", "--type", "explore", "--prompt", " "),
    ),
    Entry(
        "protocol",
        "no key",
        "refuses it (78), says how to get one",
        refused(78, "ANTHROPIC_API_KEY", "spawn", "new", *SPAWN),
    ),
    Entry(
        "protocol",
        "a command for an unknown agent",
        "refuses it (2)",
        refused(2, "there is no agent 'ghost'", "stop", "ghost"),
    ),
    Entry(
        "protocol",
        "waiting for an unknown state",
        "refuses it (2), lists them",
        refused(2, "unknown state: asleep", "wait", "scout", "--until", "asleep"),
    ),
    Entry(
        "protocol",
        "a command that is none",
        "refuses it (2), names the nearest",
        refused(2, "did you mean 'status'", "statu"),
    ),
)
