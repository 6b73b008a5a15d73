"""The Transcript tab and the Feed: talk in full, tool calls on one line that unfolds."""

from collections.abc import Sequence
from functools import lru_cache, partial

from crewboard.readmodel.activity import Activity
from crewboard_tui.queries import FeedLine
from crewboard_tui.render import formats
from crewboard_tui.render.lines import Line, Span, exact_lines, line, one_line, plain, spread, wrap
from crewboard_tui.views.board.activity import feed_lines, live_lines, paired, shown
from crewboard_tui.widgets.collapsible_list import MARK, CollapsibleRow

_INDENT = "  "


def transcript_rows(
    activity: Sequence[Activity], live: str, now: float, width: int, *, alive: bool, caret: bool = True
) -> list[CollapsibleRow]:
    """Return what was done, oldest first.

    While the agent is `alive`, its latest calls without an outcome count as running.
    """
    width -= MARK
    began = max((what.ts for what in activity if what.kind == "start"), default=0.0)
    folds = []
    for what, outcome in paired(activity):
        if what.kind == "tool":
            open_since = now - what.ts if alive and what.ts >= began else None
            folds.append(_call(what, outcome, open_since, width))
        else:
            folds.append(_said(what, width))
    return [*folds, *_live(live, width, caret=caret)]


def feed_rows(feed: Sequence[FeedLine], width: int) -> list[CollapsibleRow]:
    """Return what all agents did, newest last, one line each, unfolding to the full text."""
    width -= MARK
    return [_fed(each, head, width) for each, head in zip(feed, feed_lines(feed, width), strict=True)]


@lru_cache(maxsize=4096)
def _fed(each: FeedLine, head: Line, width: int) -> CollapsibleRow:
    what = each.what
    cut = _is_cut(what, head)
    body = partial(_whole_line, what, width, cut=cut) if cut or what.detail else None
    return CollapsibleRow(
        f"{each.agent} {_key(what)}", head, body=body, text="\n".join(filter(None, (what.text, what.detail)))
    )


def _whole_line(what: Activity, width: int, *, cut: bool) -> list[Line]:
    """Return the full text if the line was `cut`, and what a call was given and returned."""
    said = _wrapped(what.text, width) if cut else []
    return [*said, *(_indented(what.detail, width, "dim") if what.detail else [])]


def _is_cut(what: Activity, head: Line) -> bool:
    """Return True if the line does not show the full text."""
    return one_line(what.text) not in plain(head)


def _key(what: Activity) -> str:
    return f"{what.ts} {what.kind} {what.call or hash(what.text)}"


def _call(what: Activity, outcome: Activity | None, open_since: float | None, width: int) -> CollapsibleRow:
    (head,) = shown(what, outcome, width, 1)
    if outcome is None:
        head = spread(head, (_unfinished(open_since),), width)
    parts = (what.text, what.detail, *((outcome.text, outcome.detail) if outcome else ()))
    body = partial(_whole_call, what, outcome, width)
    return CollapsibleRow(_key(what), head, body=body, text="\n".join(filter(None, parts)))


def _unfinished(open_since: float | None) -> Span:
    """Return how long a call has run, or that its outcome is unknown."""
    if open_since is None:
        return Span("  outcome unknown", "warning")
    return Span(f"  {formats.took(open_since)} …", "info")


def _whole_call(what: Activity, outcome: Activity | None, width: int) -> list[Line]:
    """Return what a call was given and what it returned."""
    lines = _indented(what.detail, width, "dim")
    if outcome is None:
        return lines
    failed = outcome.is_error
    rule = line(
        Span(f"{_INDENT}→ {formats.clock(outcome.ts)} {'failed' if failed else 'done'}", "error" if failed else "")
    )
    return [*lines, rule, *_indented(outcome.detail, width, "error" if failed else "")]


def _indented(text: str, width: int, tone: str) -> list[Line]:
    return [(Span(_INDENT), *each) for each in exact_lines(text, width - len(_INDENT), tone)]


def _said(what: Activity, width: int) -> CollapsibleRow:
    """Return talk in full; anything else on one line that unfolds if it was cut."""
    head, *rest = shown(what, None, width, 0)
    cut = not rest and _is_cut(what, head)
    body = partial(_wrapped, what.text, width) if cut else None
    return CollapsibleRow(_key(what), head, tuple(rest), body, what.text)


def _wrapped(text: str, width: int) -> list[Line]:
    return [(Span(_INDENT + piece),) for piece in wrap(text, width - len(_INDENT))]


def _live(live: str, width: int, *, caret: bool) -> list[CollapsibleRow]:
    lines = live_lines(live, width, 0, caret=caret)
    return [CollapsibleRow("live", lines[0], tuple(lines[1:]), text=live)] if lines else []
