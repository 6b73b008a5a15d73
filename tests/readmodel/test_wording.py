"""The words of journals and feeds of messages and gates: the words of the Mail tab, none of the wire."""

import pytest

from crewboard.readmodel.activity import describe
from crewboard.readmodel.mail import headline
from crewboard.readmodel.needs import summarise
from crewboard.records.events import EngineSession, Event, Gate, Intake, RunEnded, Sent, ToolResult
from crewboard.records.requests import Request
from crewboard.store import mailbox


def _mail(author: str, to: str, kind: str, content: str, **metadata: str | bool) -> Event:
    return Intake(ts=1, run=1, messages=[mailbox.compose(author, to, kind, content, metadata={**metadata})])


def _sent(kind: str, content: str, to: str = "lead") -> Event:
    return Sent(ts=1, run=1, message=mailbox.compose("api", to, kind, content))


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Intake(ts=1, run=1, prompt="fix it", prompt_from="operator"), "you: fix it"),
        (_mail("operator", "api", "task_assignment", "task 9"), "you: assigns task 9"),
        (
            EngineSession(
                ts=1, session="s", engine="@agentclientprotocol/claude-agent-acp", version="0.101.0", loaded=False
            ),
            "Claude Code (claude-agent-acp 0.101.0) begins a session",
        ),
        (_mail("lead", "api", "shutdown_request", ""), "lead: please shut down"),
        (
            _mail("operator", "api", "shutdown_request", "the team is being deleted"),
            "you: please shut down: the team is being deleted",
        ),
        (_mail("operator", "api", "plan_approval_response", "approved", approve=True), "you: approves the plan"),
        (
            _mail("operator", "api", "plan_approval_response", "Question: why 0042?", approve=False),
            "you: asks back: why 0042?",
        ),
        (_mail("system", "api", "teammate_terminated", "bob ended: signal 9"), "system: bob ended: signal 9"),
        (_mail("ui", "api", "message", "the list:"), "ui: the list:"),
        (_sent("idle_notification", "free for work"), "→ lead: is free for work"),
        (_sent("question_request", "tabs?", "operator"), "→ you: asks: tabs?"),
        (Gate(ts=1, run=1, open=True), "open: may write and run commands"),
        (Gate(ts=1, run=1, open=False), "closed: reads only, until its plan is approved"),
        (ToolResult(ts=1, tool_use_id="t", name="read_file", content="1\ta\fb\n2\tc"), "read_file 2 lines"),
        (ToolResult(ts=1, tool_use_id="t", name="read_file", content="1\ta\n2\tb\n[go on]\n[CR]"), "read_file 2 lines"),
        (RunEnded(ts=1, run=1, reason="turn_limit", code=79), "reached its turn limit, code 79"),
    ],
)
def test_an_event_is_told_in_the_words_of_the_mail_tab(event: Event, text: str) -> None:
    (told,) = describe(event)
    assert told.text == text


def test_on_one_line_a_plan_is_its_title() -> None:
    for text, shown in (
        ("\n## Rotate keys\n\n", "Rotate keys"),
        ("# Plan\n1. Add a ring\n", "1. Add a ring"),
        ("# Plan\n", "Plan"),
        ("\n## Rotate keys\n\n1. Add a ring\n", "Rotate keys … (+1 line)"),
        ("# Rotate keys\u20281. Add a ring\x0c2. Tell", "Rotate keys\u20281. Add a ring\x0c2. Tell"),
    ):
        assert headline(mailbox.compose("api", "operator", "plan_approval_request", text)) == shown
    assert headline(mailbox.compose("api", "ui", "message", "# no heading here")) == "# no heading here"


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\v", "\f", "\x85", "\u2028", "\u2029"], ids=ascii)
def test_a_question_is_told_on_one_line(end: str) -> None:
    asked = Request(
        id="q-1", type="question", from_="api", to="operator", payload={"question": f"tabs?{end}death of db"}
    )
    assert summarise(asked) == "asks: tabs? death of db"
