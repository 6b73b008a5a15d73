"""The status bar: agents by state, tasks, cost, and warnings about this team. It is always visible."""

from collections import Counter
from dataclasses import dataclass

from crewboard.readmodel.team import URGENCY, TeamView
from crewboard.readmodel.usage import bill_team
from crewboard_tui.queries import Snapshot
from crewboard_tui.render.lines import Line, Span, crop, say, spread, width_of
from crewboard_tui.render.looks import LOOKS, SEEN_DEATH, TASK_LOOKS, URGENT, Look, look_of
from crewboard_tui.render.money import NEARLY, bar, money_of
from crewboard_tui.views.tasks.rows import tally

_URGENT = tuple(LOOKS[state] for state in URGENT)
_REST = (*(LOOKS[state] for state in URGENCY if state not in URGENT), SEEN_DEATH)
_WORDS_FROM = 100
_BAR = Span(" │ ", "dim")


@dataclass(frozen=True)
class Badges:
    """What the bar shows in addition to what was read."""

    read_only: bool = False
    offline: bool = False
    """True if agents hired from here use the offline model, while none is running yet."""


@dataclass(frozen=True)
class _Piece:
    """A part of the bar; the lower its rank, the longer it is kept when space is short."""

    rank: int
    spans: tuple[Span, ...]
    right: bool = False


def strip_line(snapshot: Snapshot, badges: Badges, width: int) -> Line:
    """Return the bar in `width` cells: urgent parts are kept longest, then warnings, then the rest."""
    view = snapshot.view
    counts = Counter(look_of(agent) for agent in view.agents)
    pieces = [
        _Piece(1, (say(view.name, "bold"),)),
        _Piece(0, _states(counts, _URGENT, words=width >= _WORDS_FROM)),
        _Piece(3, _states(counts, _REST, words=False)),
        _Piece(5, _tasks(view)),
        _Piece(6, _cost(view)),
        *_badges(snapshot, badges),
    ]
    kept: list[_Piece] = []
    for piece in sorted((piece for piece in pieces if piece.spans), key=lambda piece: piece.rank):
        if _needed([*kept, piece]) <= width:
            kept.append(piece)
    left = [piece for piece in pieces if piece in kept and not piece.right]
    right = [span for piece in pieces if piece in kept and piece.right for span in (*piece.spans, Span(" "))]
    return crop(spread((Span(" "), *_joined(left)), tuple(right), width), width)


def _needed(pieces: list[_Piece]) -> int:
    return 1 + sum(width_of(piece.spans) + (1 if piece.right else width_of((_BAR,))) for piece in pieces)


def _joined(pieces: list[_Piece]) -> list[Span]:
    """Join pieces with separators; none follows the team's name."""
    spans: list[Span] = []
    for at, piece in enumerate(pieces):
        between = Span("  ") if at == 1 and pieces[0].rank == 1 else _BAR
        spans += [*([between] if at else []), *piece.spans]
    return spans


def _states(counts: Counter[Look], looks: tuple[Look, ...], *, words: bool) -> Line:
    """Return the number of agents in each state; an acknowledged crash is named, as its glyph is not unique."""
    spans: list[Span] = []
    for look in looks:
        if counts[look]:
            word = f" {look.word}" if words or look is SEEN_DEATH else ""
            spans += [Span(" ")] if spans else []
            spans.append(Span(f"{look.glyph}{counts[look]}{word}", look.tone))
    return tuple(spans)


def _tasks(view: TeamView) -> Line:
    done, _, failed = tally(view.tasks).partition(" ")
    return (Span(f"tasks {done}"), Span(f" {failed}" if failed else "", TASK_LOOKS["failed"].tone)) if done else ()


def _cost(view: TeamView) -> Line:
    bill = bill_team(view)
    if bill.usd is None:
        return ()
    spent = money_of(bill)
    if bill.budget is None or bill.budget.usd is None:
        return (Span(spent),)
    full = bill.share is not None and bill.share >= NEARLY
    return (Span(f"{spent} of {bill.budget}", "warning" if full else ""), *bar(bill.share, 5))


def _badges(snapshot: Snapshot, badges: Badges) -> list[_Piece]:
    view = snapshot.view
    unsafe = any(agent.unsafe for agent in view.agents)
    shown = [
        (unsafe, 2, " sandbox none ", "alarm"),
        (view.damaged > 0, 2, f" {view.damaged} damaged ", "alarm"),
        (badges.offline or view.model_backend == "offline", 4, " OFFLINE ", "badge"),
        (badges.read_only, 4, " READ-ONLY ", "badge"),
    ]
    live = Span("▸live", "success") if snapshot.hinted else Span("▸poll", "warning")
    found = [_Piece(rank, (Span(text, tone),), right=True) for there, rank, text, tone in shown if there]
    return [*found, _Piece(4, (live,), right=True)]
