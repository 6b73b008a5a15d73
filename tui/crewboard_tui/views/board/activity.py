"""What one agent does and says: lines for the preview, the agent's page and the feed."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from crewboard.readmodel.activity import Activity
from crewboard_tui.queries import FeedLine
from crewboard_tui.render import formats
from crewboard_tui.render.lines import Line, Span, clip, one_line, spread, wrap

_TONES = {
    "start": "dim", "mail": "accent", "think": "dim italic", "say": "", "tool": "info", "done": "dim",
    "gate": "warning", "answer": "success", "error": "error", "sent": "accent", "retry": "warning", "end": "dim",
    "died": "error",
}  # fmt: skip
_TALK = frozenset({"say", "think", "answer", "error", "mail"})
_STAMP = 9
_KIND = 7
_CURSOR = "▌"


def activity_lines(
    activity: Sequence[Activity], live: str, width: int, *, most: int = 3, caret: bool = True
) -> list[Line]:
    """Return activity and the reply being streamed; talk takes at most `most` lines each, 0 means no limit.

    `caret` puts a mark at the end of the streamed reply.
    """
    lines: list[Line] = []
    for what, outcome in paired(activity):
        lines += shown(what, outcome, width, most)
    return [*lines, *live_lines(live, width, most, caret=caret)]


def shown(what: Activity, outcome: Activity | None, width: int, most: int) -> tuple[Line, ...]:
    """Return one action with its outcome, if any; talk takes at most `most` lines, 0 means no limit."""
    return _activity(what, outcome, width, most, None)


def feed_lines(feed: Sequence[FeedLine], width: int) -> list[Line]:
    """Return what all agents did, newest last, one line each."""
    names = max((len(each.agent) for each in feed), default=0)
    return [line for each in feed for line in _activity(each.what, None, width, 1, each.agent.ljust(names))]


def paired(activity: Sequence[Activity]) -> Iterable[tuple[Activity, Activity | None]]:
    """Yield each activity, a tool call together with its outcome, even if several calls ran at once."""
    outcomes: dict[int, Activity] = {}
    begun: dict[str, int] = {}
    told: set[int] = set()
    for at, what in enumerate(activity):
        if what.kind == "tool":
            begun[what.call] = at
        elif what.kind == "done" and what.call in begun:
            outcomes[begun.pop(what.call)] = what
            told.add(at)
    for at, what in enumerate(activity):
        if at not in told and not _said_again(activity[at : at + 3]):
            yield what, outcomes.get(at)


def _said_again(run: Sequence[Activity]) -> bool:
    """Return True if the next line repeats the first: a message sent by a tool, or the last reply as the answer."""
    kinds = [what.kind for what in run]
    if kinds[:2] == ["say", "answer"]:
        return run[0].text.strip() == run[1].text.strip()
    return kinds[:2] == ["tool", "sent"] and run[0].tool == "send_message"


@lru_cache(maxsize=4096)
def _activity(what: Activity, outcome: Activity | None, width: int, most: int, author: str | None) -> tuple[Line, ...]:
    tone = _TONES.get(what.kind, "")
    begin = (Span(formats.clock(what.ts) + " ", "dim"), *((Span(author + " ", "bold"),) if author else ()))
    room = max(1, width - _STAMP - (len(author) + 1 if author else 0) - _KIND)
    kind = Span(f"{what.kind:<{_KIND - 1}} ", tone)
    if what.kind in _TALK and most != 1:
        return _talk(what.text, (*begin, kind), tone, width, room, most)
    text = one_line(what.text)
    if outcome is not None:
        text = f"{text} → {_outcome(outcome)}"
    seconds = formats.took(outcome.seconds if outcome else what.seconds if what.kind == "done" else None)
    failed = outcome is not None and outcome.is_error
    left = (*begin, kind, Span(clip(text, room - len(seconds) - 1), "error" if failed else ""))
    return (spread(left, (Span(seconds, "dim"),), width),)


def _outcome(outcome: Activity) -> str:
    """Return a tool's outcome without the tool's name, which the call already shows."""
    return one_line(outcome.text.partition(" ")[2]) or "done"


def _talk(text: str, begin: Line, tone: str, width: int, room: int, most: int) -> tuple[Line, ...]:
    pieces = [piece for piece in wrap(text.strip(), room) if piece] or [""]
    if most and len(pieces) > most:
        pieces = [*pieces[: most - 1], clip(pieces[most - 1] + " …", room)]
    indent = Span(" " * (width - room))
    words = "" if tone in ("success", "accent") else tone
    return tuple((*(begin if not row else (indent,)), Span(piece, words)) for row, piece in enumerate(pieces))


def live_lines(text: str, width: int, most: int, *, caret: bool = True) -> list[Line]:
    """Return the reply being streamed, only its end if it is long; `caret` puts a mark there."""
    if not text.strip():
        return []
    room = max(1, width - _STAMP - _KIND)
    pieces = [piece for piece in wrap(text.strip(), room) if piece]
    shown = pieces[-max(most, 4) :] if most else pieces
    begin: Line = (Span(" " * _STAMP), Span(f"{'says':<{_KIND - 1}} ", "success"))
    indent = Span(" " * (_STAMP + _KIND))
    lines: list[Line] = [(*(begin if not row else (indent,)), Span(piece)) for row, piece in enumerate(shown)]
    lines[-1] = (*lines[-1], Span(_CURSOR if caret else "", "success"))
    return lines
