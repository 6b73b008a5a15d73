"""The counter strip: who is in which state, tasks, cost, and what is special about this team. Never hidden."""

from collections import Counter
from dataclasses import dataclass

from crewboard.readmodel.states import URGENCY
from crewboard.readmodel.team import TeamView
from crewboard.readmodel.usage import bill_team
from crewboard_tui.poller import Snapshot
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
    """What the strip says besides what was read."""

    read_only: bool = False
    offline: bool = False
    """Whether the next to be hired works on the embedded model, should nobody do so yet."""


@dataclass(frozen=True)
class _Piece:
    """A part of the strip; the lower its rank, the longer it stays as room gets short."""

    rank: int
    spans: tuple[Span, ...]
    right: bool = False


def strip_line(snapshot: Snapshot, badges: Badges, width: int) -> Line:
    """The strip in `width` cells: what is urgent stays longest, then what is dangerous, then the rest."""
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
    """Pieces side by side; the name needs no bar behind it."""
    spans: list[Span] = []
    for at, piece in enumerate(pieces):
        between = Span("  ") if at == 1 and pieces[0].rank == 1 else _BAR
        spans += [*([between] if at else []), *piece.spans]
    return spans


def _states(counts: Counter[Look], looks: tuple[Look, ...], *, words: bool) -> Line:
    """How many there are of each; a death that was seen shares its shape with one that was not, and says its word."""
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
