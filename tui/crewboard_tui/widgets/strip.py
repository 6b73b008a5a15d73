"""The counter strip: who is in which state, tasks, cost, and what is special about this team. Never hidden."""

from collections import Counter
from dataclasses import dataclass

from crewboard.view.fold import TeamView
from crewboard.view.spending import bill_team
from crewboard.view.states import Shown
from crewboard_tui.lines import Line, Span, crop, say, spread, width_of
from crewboard_tui.reading import Snapshot
from crewboard_tui.states import LOOKS, URGENT
from crewboard_tui.widgets.bills import NEARLY, bar, money_of

_REST: tuple[Shown, ...] = ("start", "run", "wait", "pause", "idle", "unknown", "done")
_WORDS_FROM = 100
_BAR = Span(" │ ", "dim")


@dataclass(frozen=True)
class Badges:
    """What the strip says besides what was read."""

    read_only: bool = False


@dataclass(frozen=True)
class _Piece:
    """A part of the strip; the lower its rank, the longer it stays as room gets short."""

    rank: int
    spans: tuple[Span, ...]
    right: bool = False


def strip_line(snapshot: Snapshot, badges: Badges, width: int) -> Line:
    """The strip in `width` cells: what is urgent stays longest, then what is dangerous, then the rest."""
    view = snapshot.view
    counts = Counter(agent.shown for agent in view.agents)
    pieces = [
        _Piece(1, (say(view.name, "bold"),)),
        _Piece(0, _states(counts, URGENT, words=width >= _WORDS_FROM)),
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
    """Pieces side by side; the name needs no bar behind it."""
    spans: list[Span] = []
    for at, piece in enumerate(pieces):
        between = Span("  ") if at == 1 and pieces[0].rank == 1 else _BAR
        spans += [*([between] if at else []), *piece.spans]
    return spans


def _states(counts: Counter[Shown], states: tuple[Shown, ...], *, words: bool) -> Line:
    spans: list[Span] = []
    for state in states:
        if counts[state]:
            look = LOOKS[state]
            word = f" {look.word}" if words else ""
            spans += [Span(" ")] if spans else []
            spans.append(Span(f"{look.glyph}{counts[state]}{word}", look.tone))
    return tuple(spans)


def _tasks(view: TeamView) -> Line:
    done = sum(task.status == "completed" for task in view.tasks)
    return (Span(f"tasks {done}/{len(view.tasks)}"),) if view.tasks else ()


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
    unsafe = any(agent.alive and agent.sandbox.startswith("none") for agent in view.agents)
    shown = [
        (unsafe, 2, " sandbox none ", "alarm"),
        (view.damaged > 0, 2, f" {view.damaged} damaged ", "alarm"),
        (view.model_backend == "offline", 4, " OFFLINE ", "badge"),
        (badges.read_only, 4, " READ-ONLY ", "badge"),
    ]
    live = Span("▸live", "success") if snapshot.hinted else Span("▸poll", "warning")
    found = [_Piece(rank, (Span(text, tone),), right=True) for there, rank, text, tone in shown if there]
    return [*found, _Piece(4, (live,), right=True)]
