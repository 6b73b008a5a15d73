"""Content blocks of the Messages API, as a conversation is made of them."""

from typing import Any

from crewboard.records import Message, Reply

CLEARED = "(left out to save room; call the tool again if you need it)"

WINDOW_FULL = "model_context_window_exceeded"
CUT_OFF = frozenset({"max_tokens", "pause_turn", WINDOW_FULL})
"""Stop reasons of a reply that is to be gone on with, by request: not every model goes on from its own words."""

Block = dict[str, Any]
"""One content block of the Messages API."""


def text_of(reply: Reply) -> str:
    """What a reply says in words."""
    return "".join(str(block.get("text", "")) for block in reply.content if block.get("type") == "text")


def is_blank(block: Block) -> bool:
    """Text without a word, which the API gives but does not take back."""
    return block.get("type") == "text" and not str(block.get("text", "")).strip()


def body_of(message: Message) -> str:
    """The text of a message; those without any say at least what they are, a plan which request it is."""
    if message.type == "plan_approval_request":
        return f"request_id: {message.metadata.get('request_id')}\n\n{message.content}"
    return message.content if message.content.strip() else f"({message.type})"
