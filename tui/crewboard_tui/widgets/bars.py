"""The lines around a view: status bar, view tabs, the way to a page, alert bar, footer. They have no cursor."""

import time
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len
from textual import events
from textual.app import App
from textual.geometry import Region, Size
from textual.keys import format_key
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from crewboard.names import SYSTEM, operator_mailboxes
from crewboard.readmodel.needs import format_minute, outage_end
from crewboard.readmodel.states import URGENCY
from crewboard.readmodel.team import Need, TeamView, describe_runner, describe_storage
from crewboard.readmodel.usage import bill_team
from crewboard_tui.keymap.bindings import (
    BY_ID,
    KEY_NAMES,
    KEYS,
    KEYS_OF_NEED,
    Key,
    Pressed,
    default_key,
    known_keys,
    show_key,
)
from crewboard_tui.render.formats import NEARLY, format_age, format_bill, share_bar
from crewboard_tui.render.lines import Line, Span, clip, crop, one_line, say, spread, width_of, wrap
from crewboard_tui.render.looks import LOOKS, NEED_LOOKS, SEEN_DEATH, TASK_LOOKS, URGENT, Look, look_of, tally
from crewboard_tui.widgets.line_list import LineList
from crewboard_tui.widgets.line_view import LineView
from crewboard_tui.widgets.painter import Painter

if TYPE_CHECKING:
    from crewboard_tui.queries import Snapshot


class StaticLines(Widget):
    """Shows the given lines and is as high as their number."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lines: list[Line] = []
        self._painter = Painter(self)

    def show(self, lines: list[Line]) -> None:
        """Show these lines."""
        before, self.lines = self.lines, lines
        if len(before) != len(lines):
            # Textual counts one layout that waits, and keeps the height that it has computed for the first of two.
            self._layout_updates += 1
            self.refresh(layout=True)
            return
        changed = [y for y, (old, new) in enumerate(zip(before, lines, strict=True)) if old != new]
        if changed:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return len(self.lines)

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        content = self.lines[y] if y < len(self.lines) else ()
        return self._painter.strip(content, width)

    async def on_click(self, event: events.Click) -> None:
        ident = event.style.meta.get("key")
        if ident:
            await press(self.app, self.screen, str(ident))


def follow_words(pane: LineView | LineList, key: str) -> str:
    """Return `follow:on` or `follow:off` for a pane; after the `key` that switches it, while the pane has the focus."""
    words = f"follow:{'on' if pane.follow else 'off'}"
    return f"{key} {words}" if pane.has_focus else words


MOST_OF_SELECTION, MOST_OF_APP = 6, 5
"""The most keys in the footer: for the selection, at the left, and for the whole dashboard, at the right."""

_OF_APP = ("app.next", "view.tab", "request.next", "view.filter", "app.palette", "app.help")
"""The ids of the dashboard's keys at the right of the footer. The key that leaves the screen follows them."""

_MORE = "view.menu"
"""The id of the last key at the left of the footer. It opens the menu of all that can be done with the selection."""

_WAYS_OUT = (
    "view.back",
    "hire.cancel",
    "composer.leave",
    "teams.leave",
    "menu.leave",
    "help.leave",
    "palette.leave",
    "app.leave",
)
"""The ids of the keys that leave a screen. The footer shows the first of them that works."""

_FIRST = 3
"""The least number of keys for the selection that are kept longer than those of the dashboard when space is short."""


def working_keys(screen: Screen[Any]) -> list[tuple[Key, str]]:
    """Return each key that does something on `screen` now, with the label that fits there, and its names: `j ↓`."""
    labels: Mapping[str, str] = getattr(screen, "key_labels", {})
    ascii_only = bool(getattr(screen.app, "ascii_only", False))
    show = partial(show_key, ascii_only=ascii_only)
    names: dict[str, list[str]] = {}
    for name, active in screen.active_bindings.items():
        ident = active.binding.id
        if ident and active.enabled:
            # The character that the key types, if it can be shown.
            typed = name if "+" in name or name in KEY_NAMES else format_key(name)
            readable = name if ascii_only and not typed.isascii() else typed
            names.setdefault(ident, []).append(active.binding.key_display or readable)
    return [
        (replace(key, label=labels.get(key.id, key.label)), " ".join(map(show, sorted(names[key.id], key=len))))
        for key in known_keys(names)
    ]


async def press(app: App[Any], screen: Screen[Any], ident: str) -> None:
    """Run the action of the key with the id `ident` on `screen`; do nothing if it is not available."""
    for active in screen.active_bindings.values():
        if active.binding.id == ident and active.enabled:
            await app.run_action(active.binding.action, active.node)
            return


class Footer(Struct, frozen=True):
    """The keys of a screen, each as a line: for the selection, and for the whole dashboard."""

    of_selection: tuple[Line, ...] = ()
    of_app: tuple[Line, ...] = ()
    of_body: tuple[Line, ...] = ()
    """The keys that the screen shows in its body, and not in the footer."""
    first: int = _FIRST
    """The number of keys of the selection that are kept longer than those of the dashboard."""

    def line(self, width: int) -> Line:
        """Return the keys in one line.

        Help and the way out are kept longest, then the first keys of the selection and its last, which lists them all.
        """
        return spread(*_sides(self, width), width)

    def line_with(self, help_text: str, ident: str, width: int) -> Line:
        """Return the footer with a help text in the place of the keys on one side.

        `ident` is the id of the key that the text explains: the keys on its side stay.
        """
        left, right = _sides(self, width)
        text = one_line(help_text)
        if any(span.key == ident for span in left):
            return spread(left, (Span(clip(text, width - width_of(left) - 2), "info"), Span(" ")), width)
        return spread((Span(" "), Span(clip(text, width - width_of(right) - 2), "info")), right, width)

    def lines_of(self, text: str, tone: str, width: int) -> list[Line]:
        """Return the footer with a message in place of the keys for the selection, in several lines if it is long."""
        glyph = _GLYPHS.get(tone.split(maxsplit=1)[0], "")
        *above, last = wrap(f"{glyph} {text}" if glyph else text, max(10, width - 2))[:MOST_OF_MESSAGE]
        sides = [_side_by_side(pieces, pieces) for pieces in (self.of_app, self.of_app[-2:])]
        beside = next((side for side in sides if width_of(side) + cell_len(last) + 2 <= width), None)
        if beside is None:
            above, last, beside = [*above, last], "", sides[-1]
        lines: list[Line] = [(Span(" "), say(piece, tone)) for piece in above]
        return [*lines, spread((Span(" "), say(last, tone)), beside, width)]


MOST_OF_MESSAGE = 3
"""Lines that a message takes at most."""

_GLYPHS = {"success": "✓", "error": "✗"}
"""The sign before a message, by its tone."""


@lru_cache(maxsize=4)  # it is shown again with each reading of the team
def _sides(footer: Footer, width: int) -> tuple[Line, Line]:
    """Return the keys for the selection and those of the dashboard for which there is room."""
    left, right = footer.of_selection, footer.of_app
    kept: set[Line] = set()
    longest, first = left[:_FIRST], left[_FIRST : footer.first]
    for piece in (*right[-2:], *longest, *left[-1:], *first, *right[:-2], *left[footer.first :]):
        sides = [_side_by_side(pieces, kept | {piece}) for pieces in (left, right)]
        if sum(map(width_of, sides)) < width:
            kept.add(piece)
    return _side_by_side(left, kept), _side_by_side(right, kept)


def _side_by_side(pieces: Iterable[Line], kept: Container[Line]) -> Line:
    """Join the pieces that are in `kept`, each between two blanks."""
    return tuple(span for piece in pieces if piece in kept for span in (Span(" "), *piece, Span(" ")))


def footer_of(screen: Screen[Any], in_body: Sequence[str] = (), filled: str = "", first: Sequence[str] = ()) -> Footer:
    """Return the footer of a screen.

    `in_body` has the ids of keys that the screen shows in its body. The key with the id `filled` has a coloured ground.
    The keys with the ids `first` come before all others, also those without a rank.
    """
    ranks = {key.id: key.footer for key in KEYS if key.footer is not None}
    ranks |= {ident: at - len(first) for at, ident in enumerate(first)}
    shown = [(key, pressed.split()[0]) for key, pressed in working_keys(screen) if key.id in ranks and key.label]
    shown.sort(key=lambda pair: ranks[pair[0].id])
    pieces: dict[str, Line] = {
        key.id: (Span(f" {pressed} {key.label} ", "success-pill", key.id),)
        if key.id == filled
        else (Span(pressed, "key", key.id), Span(f" {key.label}", "", key.id))
        for key, pressed in shown
    }
    of_body = tuple(pieces.pop(ident) for ident in in_body if ident in pieces)
    out = next((ident for ident in _WAYS_OUT if ident in pieces), "")
    of_app = [ident for ident in (*_OF_APP, out) if ident in pieces]
    of_thing = [ident for ident in pieces if ident not in (*_OF_APP, *_WAYS_OUT, _MORE)]
    more = [pieces[_MORE]] if _MORE in pieces else []
    of_selection = (*[pieces[ident] for ident in of_thing[: MOST_OF_SELECTION - len(more)]], *more)
    # What answers comes before the way to the next need, as their ranks say.
    answers = sum(ranks[ident] < ranks["app.next"] for ident in of_thing)
    return Footer(of_selection, tuple(pieces[ident] for ident in of_app[-MOST_OF_APP:]), of_body, max(_FIRST, answers))


VIEWS = {
    "board": "Board", "inbox": "Inbox", "tasks": "Tasks", "needs": "Needs-you", "processes": "Procs", "feed": "Feed",
    "cost": "Cost", "changes": "Changes",
}  # fmt: skip
"""The titles of the numbered views by their modes, in the order of their keys."""

_BEHIND = {"rules": "Rules", "absence": "While away", "hosts": "Hosts"}
"""The titles of the views that have a tab only while they are shown."""

_SHORT = {"needs": "Needs"}
"""Shorter titles, so that most fit on 60 columns."""


def tabs_line(view: TeamView, current: str, width: int, pressed: Pressed = default_key) -> Line:
    """Return the tabs of the views, with the counts of new mail and of needs.

    When space is short, only the keys of the last views are shown.
    """
    new_mail = sum(view.unread.get(name, 0) for name in operator_mailboxes(view.names))
    counts = {"inbox": new_mail, "needs": len(view.needs)}
    full = VIEWS | ({current: _BEHIND[current]} if current in _BEHIND else {})
    short = list((full | _SHORT).items())
    shown = [(full, " "), *((dict(short[:most]), "") for most in range(len(short), -1, -1))]
    tabs: Line = ()
    for titles, gap in shown:
        tabs = _tabs(current, counts, pressed, full, {current: full.get(current, "")} | titles, gap)
        if width_of(tabs) <= width:
            break
    return tabs


def _tabs(
    current: str, counts: Mapping[str, int], pressed: Pressed, modes: Iterable[str], titles: Mapping[str, str], gap: str
) -> Line:
    spans: list[Span] = []
    for mode in modes:
        count = f"·{counts[mode]}" if counts.get(mode) else ""
        here = mode == current
        text = titles.get(mode, "") + count
        tone = "tab" if here else ("warning" if count else "")
        spans += [
            Span(" "),
            Span(pressed(f"app.{mode}"), "key" if not here else "tab", f"app.{mode}"),
            Span(f" {text}" if text else "", tone, f"app.{mode}"),
            Span(gap),
        ]
    return tuple(spans)


def crumbs_line(crumbs: list[str], right: str, width: int, warnings: Sequence[str] = ()) -> Line:
    """Return the path from a view to the page: `Board › api`, and on the right the first of `warnings` that fits."""
    spans: list[Span] = [Span(" ")]
    for index, crumb in enumerate(crumbs):
        last = index == len(crumbs) - 1
        spans += [say(crumb, "bold" if last else "dim"), Span("" if last else " › ", "dim")]
    end = Span(f"{right} " if right else "", "dim")
    room = width - width_of((*spans, end)) - 3
    fitting = next(((say(each, "warning"), Span("  ")) for each in warnings if width_of((say(each),)) <= room), ())
    return spread(tuple(spans), (*fitting, end), width)


_WORDS_FROM = 90


_MORE_WIDTH = 6
"""Cells for the number of the needs that are not named, because there is no room."""

_SOME_WORDS = 20
"""The least cells to which the summary of a need is shortened. In less room, the end of the line is cut instead."""


def alert_line(  # noqa: PLR0913  all that decides which keys and words have a place in it
    snapshot: "Snapshot",
    now: float,
    width: int,
    *,
    read_only: bool = False,
    pressed: Pressed = default_key,
    opens: bool = True,
    acts: bool = False,
    own_keys: bool = True,
    is_told: bool = False,
) -> Line:
    """Return the alert bar: the first of these that applies.

    Trouble with the place where the team is kept, the most urgent need with its keys, a problem of the team, a first
    step on an empty team, a supervisor that is gone, or "nothing needs you".

    `opens` is True if the key for the next need opens this need, `acts` if the need's own keys already work on it.
    Without `own_keys`, only the key for the next need is shown. If the need `is_told` elsewhere on the screen, the bar
    shows only the effects of the need, and which need comes next.
    """
    view = snapshot.view
    if problem := trouble(snapshot, width):
        return (Span(" "), say(problem, "error bold"))
    if view.needs:
        keys = (
            ()
            if read_only or not own_keys or not (opens or acts)
            else keys_of_need(view.needs[0], view, pressed, words=width >= _WORDS_FROM, acts=acts)
        )
        return _worst(view, now, width, pressed, keys, opens=opens, is_told=is_told)
    if view.problem:
        then = (Span(f"   {pressed('app.teams')}", "key"), Span(" opens another one")) if view.is_deleted else ()
        return (Span(" "), say(view.problem, "error bold"), *then)
    if not view.agents:
        first = "read-only: no agents yet" if read_only else "no agents yet"
        hint = () if read_only else (Span(f"   {pressed('agent.hire')}", "key"), Span(" hires the first agent"))
        return (Span(" "), Span(first, "bold"), *hint)
    gone = not view.supervisor.alive and view.supervisor.hosts is None and view.attached is None
    if gone and any(agent.alive for agent in view.agents):
        return (Span(" supervisor gone; starting a new one, agents keep working", "warning"),)
    return (Span(" nothing needs you", "dim"),)


def others_line(view: TeamView, shown: str | None, now: float, width: int, pressed: Pressed) -> Line:
    """Return the needs other than the one with the key `shown`, for the page of that need.

    The one that the key for the next need opens comes first.
    """
    at = next((at for at, need in enumerate(view.needs) if need.key == shown), -1)
    others = [*view.needs[at + 1 :], *view.needs[: max(at, 0)]]
    if not others:
        return spread((), (Span("nothing else needs you ", "dim"),), width)
    right = (Span(f" {pressed('app.next')}", "key", "app.next"), Span(" next ", "", "app.next"))
    if len(others) == 1:
        return _need_in(others[0], now, (Span(" then", "dim"),), (), right, width)
    waiting = list(dict.fromkeys((NEED_LOOKS[need.kind].glyph, one_line(need.agent)) for need in others))
    line: Line = (Span(f" {len(others)} others wait:", "dim"),)
    room = width - width_of(right) - _MORE_WIDTH
    for number, (glyph, name) in enumerate(waiting):
        longer = (*line, Span(f"  {glyph} ", "dim"), say(name))
        if width_of(longer) > room:
            line = (*line, Span(f"  +{len(waiting) - number}", "dim"))
            break
        line = longer
    return spread(line, right, width)


def trouble(snapshot: "Snapshot", width: int) -> str:
    """Return what is wrong with the disk or database of the team, or why the last reading failed; empty if nothing."""
    unread = snapshot.problem
    if away := away_for(snapshot):
        # The part that fits, and first for how long its database is away.
        unread = clip(f"database away {away}: {snapshot.problem}", width - 2)
    # A full disk stops everything else, and explains why something could not be read.
    return describe_storage(snapshot.view) or unread or ""


def away_for(snapshot: "Snapshot") -> str:
    """Return for how long the database of the team has not answered, `12s`; empty if it does."""
    return format_age(time.monotonic() - snapshot.away_since) if snapshot.away_since is not None else ""


def _worst(view: TeamView, now: float, width: int, pressed: Pressed, keys: Line, *, opens: bool, is_told: bool) -> Line:
    need, *others = view.needs
    # The needs that the line does not name: where the first one is told elsewhere, it names the second one.
    unnamed = others[1:] if is_told else others
    more = Span(f" +{len(unnamed)} more" if unnamed and width >= _WORDS_FROM else "", "dim")
    next_key = (Span(f" {pressed('app.next')}", "key", "app.next"), Span(" open" if opens else " next", "", "app.next"))
    agent, effects = view.agent(need.agent), []
    if need.kind == "death" and agent is not None:
        effects = [f"#{task.id} {TASK_LOOKS['orphaned'].word}" for task in view.freed_by(need.agent)]
        effects += [f"{agent.unread} unread"] if agent.unread else []
    if not is_told:
        behind = "".join(f" · {effect}" for effect in effects)
        return _need_in(need, now, (), (Span(behind, "dim"),), (more, *next_key, *keys, Span(" ")), width)
    look = NEED_LOOKS[need.kind]
    follows = (Span(f" {' · '.join(effects)}", "dim"),) if effects else ()
    head = (Span(f" {look.glyph}", look.tone), *follows, *next_key, *keys)
    if not others:
        return spread(head if opens else (), (Span("nothing else needs you ", "dim"),), width)
    return _need_in(others[0], now, (*head, Span("  then", "dim")), (), (more, Span(" ")), width)


def _need_in(need: Need, now: float, before: Line, after: Line, right: Line, width: int) -> Line:
    """Return the line of a need: `before`, agent, summary and age, `after`, and `right` at the end of the line."""
    look = NEED_LOOKS[need.kind]
    left = (*before, Span(f" {look.glyph} ", look.tone), say(need.agent, look.tone), Span(" "))
    end = (Span(f" · {format_age(now - need.since)}", "dim"), *after)
    room = width - width_of((*left, *end, *right)) - 1
    summary = one_line(need.summary)
    return spread((*left, Span(clip(summary, room) if room >= _SOME_WORDS else summary), *end), right, width)


def keys_of_need(need: Need, view: TeamView, pressed: Pressed, *, words: bool, acts: bool) -> Line:
    """Return the keys that answer a need, each with its label, if there is room for `words`.

    Without that room, only the first key is returned, and none unless the keys `act` now. Before keys that work only
    once the need is open, there is an arrow.
    """
    keys = answers_to(need, view)
    if not keys and need.answered_in is None:
        return ()
    spans = [Span(" ›", "dim")] if words and not acts else []
    if need.answered_in is not None:
        return (*spans, Span(" answer in its terminal"))
    for at, (ident, label) in enumerate(keys if words else keys[: int(acts)]):
        # A click must act on this need and not on another row.
        target = ident if acts else ""
        gap = "  " if acts or at else " "
        spans += [Span(f"{gap}{pressed(ident)}", "key", target), Span(f" {label}", "", target)]
    return tuple(spans)


def answers_to(need: Need, view: TeamView) -> list[tuple[str, str]]:
    """Return the ids of the keys that answer a need in Needs-you, each with its label there."""
    # A supervisor is not an agent: the need shows the command that replaces it. What its agent's terminal answers has
    # no key here.
    if (need.agent == SYSTEM and need.kind == "failed") or need.answered_in is not None:
        return []
    made_by = "limit" if need.limit is not None else "refusal" if need.refused_by is not None else need.kind
    return [each for each in KEYS_OF_NEED[made_by] if view.attached is None or not BY_ID[each[0]].steers]


_URGENT = tuple(LOOKS[state] for state in URGENT)
_REST = (*(LOOKS[state] for state in URGENCY if state not in URGENT), SEEN_DEATH)
_STATE_WORDS_FROM = 100
_FILLED = 2
"""The most counts in the status bar that have a coloured ground."""

_OPERATOR_WIDTH = 12
_BETWEEN = "  "


class Badges(Struct, frozen=True):
    """What the status bar shows in addition to the snapshot."""

    read_only: bool = False
    root: bool = False
    posix: bool = False
    """True on a system that lacks what only Linux has."""
    foreign: bool = False
    offline: bool = False
    """True if agents hired from here use the offline model, while none is running yet."""
    others: tuple[str, ...] = ()
    """The names of the other users who have the dashboard open."""
    reversed: frozenset[str] = frozenset()
    """The kinds of needs whose counts are shown in reversed colours."""


class _Piece(Struct, frozen=True):
    """A part of the status bar; the lower its rank, the longer it is kept when space is short."""

    rank: int
    spans: tuple[Span, ...]
    right: bool = False


def strip_line(snapshot: "Snapshot", badges: Badges, width: int) -> Line:
    """Return the status bar in `width` cells: urgent parts are kept longest, then warnings, then the rest."""
    view = snapshot.view
    counts = Counter(look_of(agent) for agent in view.agents)
    # How many agents wait for the API, and when the first of them tries again.
    waiting = sum(agent.waits_for_api for agent in view.agents)
    until = outage_end(view.agents) if waiting else None
    outage = Span(f"⏳{waiting}{f' until {format_minute(until)}' if until else ''}", "warning")
    done, _, failed = tally(view.tasks).partition(" ")
    tasks = (Span(f"tasks {done}"), Span(f" {failed}" if failed else "", TASK_LOOKS["failed"].tone))
    # The two worst of the states that need the user have a coloured background.
    reverse = {NEED_LOOKS[kind].word for kind in badges.reversed}
    words = width >= _STATE_WORDS_FROM
    there = [look for look in _URGENT if counts[look]]
    filled = [
        Span(
            f" {look.glyph} {counts[look]} {look.word} ",
            f"{look.tone.split()[0]}-pill{' reverse' if look.word in reverse else ''}",
        )
        for look in there[:_FILLED]
    ]
    others = {look: counts[look] for look in there[_FILLED:]}
    plain = _states(Counter(others), _URGENT, words=words)
    urgent = (*filled, *((Span(" "),) if plain and filled else ()), *plain)
    if 1 + width_of(urgent) + len(_BETWEEN) > width:
        urgent = _states(counts, _URGENT, words=False)
    bill = bill_team(view)
    cost: Line = (Span(format_bill(bill)),) if bill.usd is not None else ()
    if cost and bill.budget is not None and bill.budget.usd is not None:
        full = bill.share is not None and bill.share >= NEARLY
        spent = Span(f"{format_bill(bill)} of {bill.budget}", "warning" if full else "")
        cost = (spent, *share_bar(bill.share, 5))
    pieces = [
        _Piece(1, (say(view.name, "bold"),)),
        _Piece(0, urgent),
        _Piece(2, (outage,) if waiting else ()),
        _Piece(3, _states(counts, _REST, words=False)),
        _Piece(5, tasks if done else ()),
        _Piece(6, cost),
        *_badges(snapshot, badges),
    ]
    kept: list[_Piece] = []
    for piece in sorted((piece for piece in pieces if piece.spans), key=lambda piece: piece.rank):
        if piece.rank == 0 or 1 + sum(width_of(each.spans) + len(_BETWEEN) for each in [*kept, piece]) <= width:
            kept.append(piece)
    left: list[Span] = []
    right: list[Span] = []
    for piece in (piece for piece in pieces if piece in kept):
        if piece.right:
            right += [Span(" "), *piece.spans, Span(" ")]
        else:
            left += [Span(_BETWEEN if left else " "), *piece.spans]
    return crop(spread(tuple(left) or (Span(" "),), tuple(right), width), width)


def _states(counts: Counter[Look], looks: tuple[Look, ...], *, words: bool) -> Line:
    """Return the number of agents in each state; an acknowledged crash is named, as its glyph is not unique."""
    spans: list[Span] = []
    for look in looks:
        if counts[look]:
            word = f" {look.word}" if words or look is SEEN_DEATH else ""
            spans += [Span(" ")] if spans else []
            spans.append(Span(f"{look.glyph}{counts[look]}{word}", look.tone))
    return tuple(spans)


def _badges(snapshot: "Snapshot", badges: Badges) -> list[_Piece]:
    view, others = snapshot.view, badges.others
    # Who else has the dashboard open, and the number of others.
    more = f" +{len(others) - 1}" if len(others) > 1 else ""
    company = f"with {clip(one_line(others[0]), _OPERATOR_WIDTH)}{more}" if others else ""
    unsafe = any(agent.unsafe for agent in view.agents)
    shown = [
        (unsafe, 2, " sandbox none ", "error-pill"),
        (view.damaged > 0, 2, f" {view.damaged} damaged ", "error-pill"),
        (badges.root, 3, "ROOT", "warning"),
        (badges.posix, 3, "POSIX", "warning"),
        (view.storage is not None, 2, f"{view.storage}", "error"),
        (view.attached is not None, 2, describe_runner(view), "warning"),
        (badges.offline or view.model_backend == "offline", 4, "OFFLINE", "warning"),
        (badges.foreign, 2, "FOREIGN", "error"),
        (badges.read_only, 4, "READ-ONLY", "warning"),
        (bool(others), 4, company, "info"),
    ]
    live = Span("live", "success") if snapshot.hinted else Span("poll", "warning")
    if snapshot.away_since is not None:
        live = Span("away", "error bold")
    found = [_Piece(rank, (Span(text, tone),), right=True) for there, rank, text, tone in shown if there]
    return [*found, _Piece(4, (live,), right=True)]
