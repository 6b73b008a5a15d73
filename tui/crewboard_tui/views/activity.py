"""The activity of agents as lines: the preview on the Board, the transcript, the feed, and the files they touched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from time import localtime
from typing import TYPE_CHECKING, NamedTuple

from crewboard import executed_files
from crewboard.executed_files import is_prose
from crewboard.untrusted import as_run
from crewboard_tui.render.formats import format_age, format_clock, format_duration, format_moment
from crewboard_tui.render.lines import (
    Line,
    Span,
    clip,
    exact_lines,
    line,
    one_line,
    pad,
    plain,
    say,
    say_run,
    spread,
    width_of,
    wrap,
)
from crewboard_tui.widgets.collapsible_list import MARK, OLDER, CollapsibleRow

if TYPE_CHECKING:
    from crewboard.readmodel.activity import Activity
    from crewboard.readmodel.file_activity import FileAccess, FileActivity
    from crewboard_tui.queries import FeedLine, Work

_TONES = {
    "start": "dim", "mail": "", "think": "dim italic", "say": "", "tool": "", "done": "dim",
    "gate": "warning", "answer": "success", "error": "error", "sent": "", "retry": "warning", "end": "dim",
    "died": "error", "block": "dim", "stop": "warning",
}  # fmt: skip
_TALK = frozenset({"say", "think", "answer", "error", "mail"})
_STAMP = 9
_KIND = 7
_CURSOR = "▌"


_MOST_OF_TALK = 3
"""The most lines of each text where only the recent activity is shown."""


def activity_lines(work: Work, width: int, *, recent: int, caret: bool) -> list[Line]:
    """Return the lines of the `recent` newest activities and of the text being streamed.

    With `caret`, there is a mark at the end of that text.
    """
    pairs = paired(work.activity[-recent:])
    lines = [each for what, outcome in pairs for each in shown(what, outcome, width, _MOST_OF_TALK)]
    return [*lines, *live_lines(work, width, _MOST_OF_TALK, caret=caret)]


def shown(what: Activity, outcome: Activity | None, width: int, most: int) -> tuple[Line, ...]:
    """Return the lines of an activity with its outcome, if any; talk takes at most `most` lines, 0 means no limit."""
    fields = _shown(what), _shown(outcome) if outcome is not None else None
    return _kept_activity(*fields, width, most, format_clock(what.ts))


class _Shown(NamedTuple):
    """The fields of an activity that its lines show: not its detail, which has up to thousands of characters."""

    kind: str
    text: str
    seconds: float | None
    is_error: bool


def _shown(what: Activity) -> _Shown:
    return _Shown(what.kind, what.text, what.seconds, what.is_error)


def paired(activity: Sequence[Activity]) -> Iterable[tuple[Activity, Activity | None]]:
    """Yield each activity with its outcome, which only tool calls have, even if several calls ran at once.

    An activity that the next one repeats is left out.
    """
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
    """Return True if the next activity repeats the first: a message sent by a tool, or the last reply as the answer."""
    kinds = [what.kind for what in run]
    if kinds[:2] == ["say", "answer"]:
        # Imported here because the first picture need not wait for it.
        from crewboard import web

        return web.repeats(run[1].text, run[0].text)
    return kinds[:2] == ["tool", "sent"] and run[0].tool == "send_message"


def _activity(
    what: Activity | _Shown, outcome: Activity | _Shown | None, width: int, most: int, moment: str, author: str = ""
) -> tuple[Line, ...]:
    tone = _TONES.get(what.kind, "")
    begin = (Span(moment + " ", "dim"), *((Span(author + " ", "bold"),) if author else ()))
    room = max(1, width - width_of(begin) - _KIND)
    kind = Span(f"{what.kind:<{_KIND - 1}} ", tone or "dim")
    if what.kind in _TALK and most != 1:
        begin = (*begin, kind)
        pieces = [piece for piece in wrap(what.text.strip(), room) if piece] or [""]
        if most and len(pieces) > most:
            pieces = [*pieces[: most - 1], clip(pieces[most - 1] + " …", room)]
        indent = Span(" " * (width - room))
        words = "" if tone == "success" else tone
        return tuple((*(begin if not row else (indent,)), Span(piece, words)) for row, piece in enumerate(pieces))
    text = one_line(what.text)
    if outcome is not None:
        # Without the tool's name, which the call already shows.
        text = f"{text} → {one_line(outcome.text.partition(' ')[2]) or 'done'}"
    seconds = format_duration(outcome.seconds if outcome else what.seconds if what.kind == "done" else None)
    failed = outcome is not None and outcome.is_error
    # Before the text, whose end may be cut.
    sign = "✗ " if failed else ""
    left = (*begin, kind, Span(clip(sign + text, room - len(seconds) - 1), "error" if failed else ""))
    return (spread(left, (Span(seconds, "dim"),), width),)


# As many as an agent's page shows at once.
_kept_activity = lru_cache(maxsize=512)(_activity)


def live_lines(work: Work, width: int, most: int, *, caret: bool = True) -> list[Line]:
    """Return the text being streamed, or its end if it is long; `caret` puts a mark there.

    For an agent on another machine, say where it is instead: else it would look silent.
    """
    text = work.live
    # A command prints it, if one runs, else the model says it.
    source = "out" if work.activity and work.activity[-1].kind == "tool" else "says"
    room = max(1, width - _STAMP - _KIND)
    if work.host:
        ends = "the call has ended" if source == "out" else "the reply is complete"
        hidden = clip(f"on {work.host}; shown here once {ends}", room)
        return [(Span(" " * _STAMP), Span(f"{source:<{_KIND - 1}} ", "dim"), say(hidden, "dim"))]
    if not text.strip():
        return []
    pieces = [piece for piece in wrap(text.strip(), room) if piece]
    shown = pieces[-max(most, 4) :] if most else pieces
    begin: Line = (Span(" " * _STAMP), Span(f"{source:<{_KIND - 1}} ", "success"))
    indent = Span(" " * (_STAMP + _KIND))
    lines: list[Line] = [(*(begin if not row else (indent,)), Span(piece)) for row, piece in enumerate(shown)]
    lines[-1] = (*lines[-1], Span(_CURSOR if caret else "", "success"))
    return lines


_INDENT = "  "


def transcript_rows(
    work: Work, now: float, width: int, all_of_it: str, *, alive: bool, caret: bool = True
) -> list[CollapsibleRow]:
    """Return a row for each activity of an agent, oldest first, and one for the text being streamed.

    If the journal has older ones, the first row says so and names `all_of_it`, the command that prints them. While the
    agent is `alive`, its latest calls without an outcome count as running.
    """
    width -= MARK
    began = max((what.ts for what in work.activity if what.kind == "start"), default=0.0)
    folds = []
    if work.has_older:
        folds.append(CollapsibleRow(OLDER, (Span(f"older lines are not loaded · {all_of_it} prints all", "warning"),)))
    for what, outcome in paired(work.activity):
        if what.kind == "tool":
            open_since = now - what.ts if alive and what.ts >= began else None
            texts = (what.text, what.detail, *((outcome.text, outcome.detail) if outcome else ()))
            line = partial(_call_line, what, outcome, open_since, width)
            folds.append(CollapsibleRow(_key(what), line, body=partial(_whole_call, what, outcome, width), texts=texts))
        else:
            head, *rest = shown(what, None, width, 1 if what.kind == "think" else 0)
            cut = not rest and _is_cut(what, head)
            sources = _indented(what.detail, width, "dim") if what.detail and what.kind in _TALK else []
            body = partial(_whole_line, what, width, cut=cut) if cut or (what.detail and not sources) else None
            folds.append(CollapsibleRow(_key(what), head, (*rest, *sources), body, (what.text, what.detail)))
    lines = live_lines(work, width, 0, caret=caret)
    folds += [CollapsibleRow("live", lines[0], tuple(lines[1:]), texts=(work.live,))] if lines else []
    return folds


class FeedRows:
    """Makes the rows of the Feed: what all agents did, newest last, one line each, unfolding to the full text.

    A call has one row, with its outcome. The name is shown where it changes, and within the same minute, only the
    seconds of a time. A row that was shown before is kept while it looks the same.
    """

    def __init__(self) -> None:
        self._looks: tuple[object, ...] = ()
        self._made: dict[int, tuple[_FeedEntry, CollapsibleRow]] = {}
        """The rows by the identity of their feed lines, which stay the same objects."""

    def read(self, feed: Sequence[FeedLine], now: float, width: int) -> list[CollapsibleRow]:
        """Return the rows at the time `now`; older lines have their date."""
        names = max((len(each.agent) for each in feed), default=0)
        looks = (localtime(now)[:3], width, names)
        known = self._made if looks == self._looks else {}
        self._looks = looks
        begun = {(each.agent, each.what.call) for each in feed if each.what.kind == "tool"}
        outcomes = {(each.agent, each.what.call): each for each in feed if each.what.kind == "done"}
        made: dict[int, tuple[_FeedEntry, CollapsibleRow]] = {}
        before: FeedLine | None = None
        for each in feed:
            call = each.agent, each.what.call
            if each.what.kind == "done" and call in begun:
                continue
            outcome = outcomes.get(call) if each.what.kind == "tool" else None
            same_minute = before is not None and each.what.ts // 60 == before.what.ts // 60
            entry = _FeedEntry(each, outcome, before is None or each.agent != before.agent, same_minute)
            kept = known.get(id(each))
            made[id(each)] = (
                kept if kept is not None and kept[0] == entry else (entry, _feed_row(entry, now, width - MARK, names))
            )
            before = each
        self._made = made
        return [row for _, row in made.values()]


class _FeedEntry(NamedTuple):
    """A line of the Feed with the outcome of its call; whether its name is shown, and whether its minute is not new."""

    line: FeedLine
    outcome: FeedLine | None
    is_named: bool
    same_minute: bool


def _feed_row(entry: _FeedEntry, now: float, width: int, names: int) -> CollapsibleRow:
    what, outcome = entry.line.what, entry.outcome.what if entry.outcome is not None else None
    moment = format_moment(what.ts, now)
    # A time with its date has no seconds.
    shown = moment[-3:].rjust(len(moment)) if entry.same_minute and moment.count(":") > 1 else moment
    author = (entry.line.agent if entry.is_named else "").ljust(names)
    (head,) = _activity(what, outcome, width, 1, shown, author)
    key = f"{entry.line.agent} {_key(what)}"
    if outcome is not None:
        texts = (what.text, what.detail, outcome.text, outcome.detail)
        return CollapsibleRow(key, head, body=partial(_whole_call, what, outcome, width), texts=texts)
    cut = _is_cut(what, head)
    body = partial(_whole_line, what, width, cut=cut) if cut or what.detail else None
    return CollapsibleRow(key, head, body=body, texts=(what.text, what.detail))


def _whole_line(what: Activity, width: int, *, cut: bool) -> list[Line]:
    """Return the full text if the line was `cut`, and the detail of the activity."""
    said: list[Line] = []
    if cut:
        said = [(Span(_INDENT + piece),) for piece in wrap(what.text, width - len(_INDENT))]
    return [*said, *(_indented(what.detail, width, "dim") if what.detail else [])]


def _is_cut(what: Activity, head: Line) -> bool:
    """Return True if the line does not show the full text."""
    return one_line(what.text) not in plain(head)


def _key(what: Activity) -> str:
    return f"{what.ts} {what.kind} {what.call or hash(what.text)}"


def _call_line(what: Activity, outcome: Activity | None, open_since: float | None, width: int) -> Line:
    (head,) = shown(what, outcome, width, 1)
    if outcome is not None:
        return head
    runs = Span("  outcome unknown", "warning")
    if open_since is not None:
        runs = Span(f"  {format_duration(open_since)} …", "info")
    return spread(head, (runs,), width)


def _whole_call(what: Activity, outcome: Activity | None, width: int) -> list[Line]:
    """Return the arguments of a call, and its outcome if there is one."""
    lines = _indented(what.detail, width, "dim")
    if outcome is None:
        return lines
    failed = outcome.is_error
    rule = line(
        Span(f"{_INDENT}→ {format_clock(outcome.ts)} {'failed' if failed else 'done'}", "error" if failed else "")
    )
    return [*lines, rule, *_indented(outcome.detail, width, "error" if failed else "")]


def _indented(text: str, width: int, tone: str) -> list[Line]:
    return [(Span(_INDENT), *each) for each in exact_lines(text, width - len(_INDENT), tone)]


_COUNTS = 10


def file_rows(touches: FileActivity, name: str, now: float, width: int) -> list[CollapsibleRow]:
    """Return a row for each change of a file by the agent `name`, newest first; it unfolds to the diff."""
    mine = [touch for touch in reversed(touches.all) if touch.agent == name and touch.changed]
    rows = []
    for touch in mine:
        head = partial(_file_line, touch, touches, now, width - MARK)
        body = partial(_file_body, touch, touches, now, width - MARK)
        # The key stays the same when newer accesses are added.
        rows.append(CollapsibleRow(f"{touch.ts} {touch.call}", head, body=body, texts=(touch.path, touch.diff)))
    return rows


def file_head(width: int) -> Line:
    """Return the column titles for `file_rows`."""
    left = (Span(f"{'TIME':<9}{'HOW':<6}{'LINES':<{_COUNTS}}FILE", "dim"),)
    return spread(left, (Span("ALSO OPEN BY", "dim"),), width - MARK)


def _file_line(touch: FileAccess, touches: FileActivity, now: float, width: int) -> Line:
    added, removed = f"+{touch.added}", "" if touch.removed is None else f" −{touch.removed}"
    left = (
        Span(format_clock(touch.ts) + " ", "dim"),
        Span(f"{touch.kind:<6}"),
        Span(added, "success"),
        Span(removed, "error"),
        Span(pad("", _COUNTS - len(added) - len(removed))),
        say_run(touch.path),
    )
    return spread(left, file_marks(touch.path, touches.others(touch.path, touch.agent, now)), width)


def file_marks(path: str, shared: Sequence[FileAccess]) -> Line:
    """Return the marks of a file: that it runs on the user's machine, and the agents that used it lately (`shared`)."""
    runs = (Span(executed_files.RUNS, "warning"),) if executed_files.runs_on_your_machine(path) else ()
    both = (Span("  "),) if runs and shared else ()
    if not shared:
        return runs
    names = ", ".join(touch.agent for touch in shared)
    clash = any(touch.changed for touch in shared)
    return (*runs, *both, Span(f"⚠ {names}" if clash else names, "warning" if clash else "dim"))


def _file_body(touch: FileAccess, touches: FileActivity, now: float, width: int) -> list[Line]:
    # Imported here because the first picture shows no diff.
    from crewboard_tui.render.diff import diff_lines

    lines = [shared_line(each, now) for each in touches.others(touch.path, touch.agent, now)]
    if touch.removed is None:
        lines.append((Span("whole file written; its previous content is unknown", "dim"),))
    return [*lines, *diff_lines(touch.diff if is_prose(touch.path) else as_run(touch.diff), width, touch.path)]


def shared_line(touch: FileAccess, now: float) -> Line:
    """Return what an agent did with a file, and how long ago."""
    did = "changed it" if touch.changed else "read it"
    return (Span(f"{touch.agent} {did} {format_age(now - touch.ts)} ago", "warning" if touch.changed else "dim"),)
