"""Messages in the words of whoever reads them: what a mailbox, a journal and a feed say of one is the same."""

from crewboard.names import OPERATOR
from crewboard.records import Message

_WORDS = {
    "idle_notification": "is free for work",
    "teammate_terminated": "",
    "plan_approval_request": "plan:",
    "plan_approval_response": "about the plan:",
    "shutdown_request": "please shut down",
    "shutdown_response": "about shutting down:",
    "permission_request": "may I:",
    "permission_response": "about that permission:",
    "question_request": "asks:",
    "question_response": "answers:",
    "task_assignment": "assigns",
    "result": "result:",
    "error": "could not go on:",
    "interrupt": "interrupts:",
    "broadcast": "to all:",
    "budget_warning": "warns:",
}
"""Protocol messages in words."""

_ANSWERS = {
    "plan_approval_response": ("approves the plan", "refuses the plan"),
    "permission_response": ("allows it", "refuses it"),
    "shutdown_response": ("agrees to shut down", "stays"),
}
"""Answers in words: a yes, a no."""


QUESTION = "Question: "
"""How feedback begins that asks back: an agent that waits reads nothing else, so that it comes with a no."""


def question_in(feedback: str | None) -> str | None:
    """What the feedback of a no asks back; None where it is a plain no."""
    return feedback.removeprefix(QUESTION) if feedback and feedback.startswith(QUESTION) else None


def person(name: str) -> str:
    """A name as the operator reads it."""
    return "you" if name == OPERATOR else name


def in_words(message: Message) -> str:
    """What a message does, with a blank behind it; nothing for a plain one."""
    approve = message.metadata.get("approve")
    if _asks_back(message):
        return "asks back: "
    if message.type in _ANSWERS and isinstance(approve, bool):
        return _ANSWERS[message.type][0 if approve else 1] + (": " if gist(message) else "")
    words = _WORDS.get(message.type, "" if message.type == "message" else f"{message.type}:")
    return f"{words} " if words else ""


def gist(message: Message) -> str:
    """What it says beyond that: an answer without feedback says nothing more, and nobody is free in more words."""
    if _asks_back(message):
        return message.content.removeprefix(QUESTION)
    bare = message.type in _ANSWERS and message.content in ("approved", "rejected")
    free = message.type == "idle_notification" and message.content == "free for work"
    return "" if bare or free else message.content


def headline(message: Message) -> str:
    """The same where there is one line for it."""
    said = gist(message)
    return plan_title(said) if message.type == "plan_approval_request" else said


def plan_title(plan: str) -> str:
    """The first words of a plan, without the marks of a heading; empty if it has none."""
    lines = (line.strip("# \t") for line in plan.splitlines())
    return next((line for line in lines if line), "")


def _asks_back(message: Message) -> bool:
    refused = message.type in _ANSWERS and message.metadata.get("approve") is False
    return refused and question_in(message.content) is not None


def tell(message: Message) -> str:
    """All of it after a name: `you: to all: freeze main`."""
    words, more = in_words(message), gist(message)
    return f"{words}{more}" if more else words.rstrip(" :")
