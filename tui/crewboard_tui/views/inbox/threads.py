"""Threads: the messages of one request under one row that shows its status."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import groupby

from crewboard.readmodel.mail import Letter, display_name, question_in
from crewboard.readmodel.needs import summarise
from crewboard.records import Request
from crewboard_tui.render import formats
from crewboard_tui.render.lines import Line, Span, say, wrap

_NOUNS = {"plan_approval": "plan", "permission": "permission", "question": "question", "shutdown": "shutdown"}


@dataclass(frozen=True)
class Thread:
    """A request with its earlier revisions, oldest first, and its messages in a mailbox."""

    requests: tuple[Request, ...]
    letters: tuple[Letter, ...]

    @property
    def key(self) -> str:
        """Return a key that stays the same when the thread grows."""
        return f"thread {self.requests[0].id}"

    @property
    def newest(self) -> Letter:
        """Return its latest message in the mailbox."""
        return self.letters[-1]


def find_threads(
    letters: Sequence[Letter], asked: Sequence[Request], apart: Container[str] = ()
) -> list[Letter | Thread]:
    """Return mail in order, each thread at the place of its newest message; single messages stay as they are.

    The messages with an id in `apart` belong to no thread.
    """
    chains = {request.id: chain for chain in _chains(asked) for request in chain}
    gathered: dict[str, list[Letter]] = {}
    chain_of = {each.message.id: chains.get(_request_of(each)) for each in letters if each.message.id not in apart}
    for letter in letters:
        chain = chain_of.get(letter.message.id)
        if chain is not None and len(_steps(chain)) > 1:
            gathered.setdefault(chain[0].id, []).append(letter)
    found: list[Letter | Thread] = []
    for letter in letters:
        chain = chain_of.get(letter.message.id)
        inside = gathered.get(chain[0].id) if chain is not None else None
        if inside is None or chain is None:
            found.append(letter)
        elif inside[-1] is letter:
            found.append(Thread(chain, tuple(inside)))
    return found


def _request_of(letter: Letter) -> str:
    return str(letter.message.metadata.get("request_id", ""))


def _chains(asked: Sequence[Request]) -> list[tuple[Request, ...]]:
    """Return each request with those that it supersedes, oldest first."""
    chains: dict[str, list[Request]] = {}
    roots: dict[str, str] = {}
    for request in asked:
        root = roots.get(request.supersedes or "", request.id)
        roots[request.id] = root
        chains.setdefault(root, []).append(request)
    return [tuple(chain) for chain in chains.values()]


def _steps(chain: tuple[Request, ...]) -> list[str]:
    """Return the steps of a chain, one word each."""
    steps: list[str] = []
    for request in chain:
        steps.append(_NOUNS[request.type])
        if request.status == "rejected":
            steps.append("refusal" if question_in(request.feedback) is None else "asked back")
        elif request.status == "cancelled":
            steps += [] if request is not chain[-1] else ["withdrawn"]
        elif request.status == "expired":
            steps.append("expired")
        elif request.status != "pending":
            steps.append(f"{request.status} {formats.clock(request.decided_at or request.created_at)[:5]}")
    return steps


def standing(thread: Thread) -> str:
    """Return the status: `plan, 1 refusal, plan, approved 14:51`."""
    groups = [(word, len(list(group))) for word, group in groupby(_steps(thread.requests))]
    words = [f"{count} {word}{'s' if count > 1 else ''}" if count > 1 or word == "refusal" else word
             for word, count in groups]  # fmt: skip
    return ", ".join([*words, *(["waits"] if thread.requests[-1].status == "pending" else [])])


def story_lines(thread: Thread, width: int) -> list[Line]:
    """Return all questions and answers from the beginning."""
    lines: list[Line] = []
    for request in thread.requests:
        lines += _said(request.created_at, display_name(request.from_), summarise(request), width)
        replaced = request.status == "cancelled" and request is not thread.requests[-1]
        if not replaced and request.decided_at is not None and request.decided_by is not None:
            words = _decision(request)
            lines += _said(request.decided_at, display_name(request.decided_by), words, width)
    return lines


def _decision(request: Request) -> str:
    asked = question_in(request.feedback) if request.status == "rejected" else None
    if asked is not None:
        return f"asked back: {asked}"
    return f"{request.status}{': ' + request.feedback if request.feedback else ''}"


def _said(ts: float, who: str, words: str, width: int) -> list[Line]:
    begin: Line = (Span(formats.clock(ts) + " ", "dim"), say(who, "accent"), Span(" "))
    indent = 9 + len(who) + 1
    first, *rest = wrap(words, max(1, width - indent)) or ("",)
    return [(*begin, Span(first)), *((Span(" " * indent + piece),) for piece in rest)]


def subject(thread: Thread) -> str:
    """Return the subject."""
    return summarise(thread.requests[-1]).partition(": ")[2]
