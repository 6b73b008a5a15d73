"""The base of every full screen: the lines around its body, its panes, its actions, and the keys that start them."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, ClassVar, Protocol

from textual import events, on
from textual.app import ComposeResult
from textual.binding import ActiveBinding, BindingsMap, BindingType
from textual.containers import Container
from textual.geometry import Size
from textual.screen import UPDATE_PERIOD, Screen
from textual.timer import Timer
from textual.widget import Widget

from crewboard import Need, Request, TeamView, env
from crewboard.unix import process
from crewboard_tui.actions.registry import Action, Layer, Selection
from crewboard_tui.actions.search import Search
from crewboard_tui.compose.composer import PromptLine
from crewboard_tui.context import AppContext
from crewboard_tui.keymap.bindings import (
    BY_ID,
    GROUPS,
    KEYS,
    KEYS_OF_NEED,
    WHERE,
    Key,
    bindings_of,
    command_name,
    known_keys,
)
from crewboard_tui.queries import UNUSED, Query, Snapshot
from crewboard_tui.render.lines import Line, Span, clip, width_of
from crewboard_tui.render.sanitize import safe_text
from crewboard_tui.widgets.bars import (
    VIEWS,
    Badges,
    Footer,
    StaticLines,
    alert_line,
    answers_to,
    footer_of,
    others_line,
    press,
    strip_line,
    tabs_line,
    trouble,
)
from crewboard_tui.widgets.collapsible_list import CollapsibleList
from crewboard_tui.widgets.line_list import LineList
from crewboard_tui.widgets.line_view import LineView
from crewboard_tui.widgets.painter import TouchedCompositor, binding_of, forget_painted, paint_settled
from crewboard_tui.widgets.reading import ReadText

__all__ = [
    "ONLY_LOOKING",
    "AppContext",
    "BaseScreen",
    "Panes",
    "Query",
    "Snapshot",
    "Subject",
    "first_hire",
    "is_form",
    "why_gone",
]

NARROW, MEDIUM, WIDE, HUGE = 0, 60, 100, 160
"""Terminal widths at which size classes begin (docs/reference/dashboard.md#sizes)."""

SHORT, TALL, HIGH = 14, 22, 50
"""Terminal heights from which on there are titles, two lines in the footer, and the team's cost on the Board."""

ONLY_LOOKING = "not while you only look (--read-only)"
"""The reason why a key that changes the team does nothing in a read-only dashboard."""

CAME_BY_ITSELF = "not taken: what is under the cursor has only just come there; press it again"

_WHY_NOTHING = {"app.next": "nothing needs you", "app.absence": "nothing happened"}
"""The reason why a key that works in all views does nothing, by the id of the key."""

_NOTHING_TO_FIND = "nothing to find here"

_WRITES = frozenset({"changes.note", "request.note"})
"""Keys after which the user types a text, also if the key did nothing because the cursor is not on a line."""

_NO_VERBS = frozenset({"view", "menu", "copy", "back"})
"""The scopes of keys of a view that do not act on the selection."""

_RIGHT = 3
"""The right button of a mouse."""

_TYPES_ON = 0.7
"""Seconds after a key of `_WRITES` did nothing, and after each character since, in which characters are not keys."""

_COPIED = 60
"""Cells for the start of the copied text in the footer."""


class Subject(Protocol):
    """A request that a page shows, and that can change while the page is open."""

    settled: bool

    @property
    def seen(self) -> Request: ...

    @property
    def is_over(self) -> bool: ...

    @property
    def need(self) -> str | None: ...

    @property
    def copied(self) -> str: ...

    def heading(self, snapshot: Snapshot, width: int) -> Line: ...

    def pause(self) -> None: ...


class BaseScreen(Screen[None]):
    """A full screen. It shows snapshots as they come, names its queries, and offers actions."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (MEDIUM, "-medium"), (WIDE, "-wide"), (HUGE, "-huge")]
    VERTICAL_BREAKPOINTS = [(0, "-short"), (SHORT, "-middle"), (TALL, "-tall")]
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("view")]
    ESCAPE_TO_MINIMIZE = False

    MODE: ClassVar[str] = ""
    """The mode of a numbered view; empty on a page."""

    TAB: ClassVar[str] = ""
    """The name of the tab of a page that opens from any view; empty on other pages."""

    DETAIL: ClassVar[str] = ""
    """The id of the pane about the selected row, below the list; empty if there is none."""

    IS_FORM: ClassVar[bool] = False
    """True if leaving the screen loses what was entered."""

    _settled_timer: Timer | None = None

    rows: LineList
    """The main list of the screen, if it has one: it has the focus first."""

    detail: LineView
    """The pane about the selected row, if there is one."""

    def __init__(self, context: AppContext) -> None:
        super().__init__()
        self._compositor = TouchedCompositor()
        if self.DETAIL:
            self.detail = LineView(id=self.DETAIL, classes="pane", follows=False)
        self.context = context
        self.subject: Subject | None = None
        """The request that the screen's keys answer; None on screens that are not about a request."""
        self.actions: Mapping[str, Action] = {}
        """The actions of the screen, by the id of their key."""
        self.back_layers: Sequence[Layer] = ()
        """The layers that the key `view.back` closes before it leaves the screen: at each press, the first open one."""
        self.search = Search(context, self.narrow)
        """The filter of the view's list."""
        self.panes = Panes(self)
        """The panes of the body, one of which may fill the screen."""
        self.texts: Sequence[ReadText] = ()
        """The texts for which the screen tracks what was on the screen."""
        self._footer = Footer()
        """The last footer, also while a message takes its place."""
        self._types_until = 0.0
        """The time until which characters are not keys, because they were meant for a text (monotonic)."""
        self._judged: Selection | None = None
        """The selection while it is decided which keys work; else None."""
        self._keys_decided_by: object = None
        """The facts that decided which keys worked at the last snapshot; None if they are not known."""
        self._strip_shows: tuple[TeamView | None, tuple[object, ...]] = (None, ())
        """The facts that the status bar was painted from."""
        self.are_keys_due = self.is_due = False
        """True if the footer must be painted after the next refresh, and not before; and True if everything must."""
        self._was_shown = False
        self._forgets: Timer | None = None
        """The timer after which the painted lines of a hidden screen are dropped."""

    def offer(self, *groups: Iterable[Action]) -> None:
        """Offer these actions with their keys. Of two actions with the same key, only the first is offered."""
        own: tuple[Action, ...] = (
            Action("view.copy", self._copy, lambda _: None if self.copied else "nothing to copy here"),
            Action(
                "view.back", lambda _: self.back(), label=self._back_label,
                available=lambda _: None
                if self.MODE != "board" or self._open_layer is not None
                else "nothing is open on the Board",
            ),
        )  # fmt: skip
        if self.texts:
            hidden = Action(
                "request.reveal",
                lambda _: self._reveal(),
                lambda _: None if any(text.hides or text.reveals for text in self.texts) else "nothing is hidden",
                lambda _: "hide keys" if any(text.reveals for text in self.texts) else None,
            )
            own += (hidden,)
        offered: dict[str, Action] = {}
        taken: set[str] = set()
        for action in itertools.chain(*groups, own):
            keys = self.context.keys_of(action.id)
            # By the user's own keys: one that they moved away leaves its key to the other.
            if not taken.issuperset(keys):
                taken.update(keys)
                offered[action.id] = action
        self.actions = offered
        if self.verbs:
            self.actions["view.menu"] = Action("view.menu", lambda _: self.context.navigator.open_menu())
        bound = BindingsMap(BY_ID[ident].binding for ident in self.actions)
        self._bindings.key_to_bindings.update(bound.key_to_bindings)

    @property
    def verbs(self) -> Sequence[Key]:
        """Return the keys that act on the selection of this screen, also those that do nothing now."""
        return [key for key in known_keys(self.actions) if key.scope not in _NO_VERBS]

    def _reveal(self) -> None:
        """Show what is redacted in the texts of this screen, or hide it again."""
        for text in self.texts:
            text.reveals = not text.reveals
        self.paint(self.context.snapshot)
        self.refresh_bindings()

    # ------------------------------------------------------------------------------------ what a screen fills in

    def take(self, character: str) -> None:
        """Handle a character that was typed before this screen was shown and that no widget handled."""

    def paint_detail(self, snapshot: Snapshot) -> None:
        """Show the selected row in the pane about it."""

    @on(LineList.Moved)
    def _tell_of_row(self, event: LineList.Moved) -> None:
        if self.DETAIL and event.rows is self.rows:
            self.ask()
            self.detail.restart()
            self.paint_detail(self.context.snapshot)
            self.paint_keys()

    @property
    def selected(self) -> str | None:
        """Return the key of the row under the cursor of the main list; None if there is none."""
        return self.rows.selected or None

    def go_to(self, key: str) -> None:
        """Put the cursor on the row `key` of the main list, as soon as it is there. A form ignores it."""
        if not self.IS_FORM:
            self.rows.want(key)

    def selection(self) -> Selection:
        """Return the rows that the keys act on."""
        return Selection()

    @property
    def is_over(self) -> bool:
        """Return True if the request on this screen is closed."""
        return self.subject is not None and self.subject.is_over

    def body(self) -> Iterable[Widget]:
        """Yield the widgets between the heading and the alert bar, without the pane about the selected row."""
        yield self.rows

    def heading(self, snapshot: Snapshot, width: int) -> Line:
        """Return the line below the status bar: the tabs of the views on a view, the way to it on a page."""
        if self.subject is not None:
            return self.subject.heading(snapshot, width)
        here = self.MODE or self.TAB
        return tabs_line(snapshot.view, here, width, self.context.key) if here else ()

    def paint(self, snapshot: Snapshot) -> None:
        """Show a snapshot in the body."""

    def after_paint(self) -> None:
        """Note that the screen is painted, and which lines of its texts are on it. Called after each paint."""
        self.context.reading.keys.note_paint()
        if self.texts and self.is_active and self.is_ready:
            for text in self.texts:
                text.note_shown()

    def tick(self) -> None:
        """Paint the same snapshot again at a later time, because its ages have changed."""
        self.paint(self.context.snapshot)

    def what_decides_keys(self) -> object:
        """Return the facts, in addition to keys and focus, that decide which keys work; None if any fact may.

        While they are equal, a reading of the team leaves the footer as it is.
        """
        return None

    @property
    def keys_in_body(self) -> Sequence[str]:
        """Return the ids of the keys that are shown in the body, and not in the footer."""
        return ()

    @property
    def filled_key(self) -> str:
        """Return the id of the key that has a coloured ground in the footer; empty if none has."""
        return ""

    def queries(self) -> Iterable[Query[object]]:
        """Return the queries of this screen, for what it shows in addition to the roster."""
        return ()

    @property
    def is_in_front(self) -> bool:
        """Return True if no other full screen is in front of this one. A palette or a prompt line may be."""
        return next((each for each in reversed(self.app.screen_stack) if isinstance(each, BaseScreen)), None) is self

    def ask(self) -> None:
        """Set this screen's queries, unless it is hidden: layouts and messages reach hidden screens too."""
        if self.is_in_front:
            self.context.look_at(self.queries())

    def keep_drafts(self) -> None:
        """Save unsent text as drafts. Called at each tick, and when the screen is closed."""

    def tells(self, need: Need) -> bool:
        """Return True if the body shows a need in full, so that the alert bar need not repeat it."""
        return self.subject is not None and need.key == self.subject.need

    def lists(self, need: Need) -> bool:  # noqa: ARG002
        """Return True if the screen shows a need in a list of all needs, so that it needs no alert bar for it."""
        return False

    @property
    def settled(self) -> bool:
        """Return True if the screen's keys work: a page that has just changed accepts no answer for a moment."""
        return self.subject is None or self.subject.settled

    @property
    def copied(self) -> str:
        """Return the text to copy: the request, the row under the cursor, or the text of the pane; empty if none."""
        if self.subject is not None and self.subject.copied:
            return self.subject.copied
        return self.focused.copied if isinstance(self.focused, LineList | LineView) else ""

    # ------------------------------------------------------------------------------------------------- the frame

    def compose(self) -> ComposeResult:
        # Known before the first layout: with the first resize, all of it would be styled and laid out again.
        for points, extent in zip((self.HORIZONTAL_BREAKPOINTS, self.VERTICAL_BREAKPOINTS), self.app.size, strict=True):
            self.add_class(max(point for point in points if point[0] <= extent)[1], update=False)
        yield StaticLines(id="strip")
        yield StaticLines(id="heading")
        with Container(id="body"):
            yield from self.body()
            if self.DETAIL:
                yield self.detail
        yield StaticLines(id="alert")
        yield StaticLines(id="keys")

    def on_mount(self) -> None:
        self.bindings_updated_signal.subscribe(self, lambda _: self.paint_keys())
        if self.MODE:
            # In the orders and the zoom in which the user left it the last time.
            visit = self.context.visit
            for rows in self.query(LineList):
                rows.choose_order(visit.orders.get(rows.id or "", ""))
                rows.moves = not self.context.reduced_motion
            if pane := visit.zoomed.get(self.MODE):
                self.call_after_refresh(self.panes.zoom_again, pane)
        self.refresh_all()

    @property
    def orders(self) -> dict[str, str]:
        """Return the chosen order of each list that the user sorts, by its id; empty for the default."""
        return {rows.id: rows.chosen_order for rows in self.query(LineList) if rows.id}

    def on_descendant_focus(self) -> None:
        # What a pane's border offers depends on where the keys go.
        if self.MODE and self.is_ready and not self.is_due:
            self.paint(self.context.snapshot)
        elif self.is_ready:
            # How the key of the next need is pressed depends on whether a text is written.
            self.paint_times(self.context.snapshot)

    @on(events.DescendantBlur)
    def _keep_focus(self) -> None:
        # A pane that is hidden gives the focus to none, as in a terminal that became too small for it.
        self.call_after_refresh(self._focus_main_list)

    def _focus_main_list(self) -> None:
        if self.focused is None and self.AUTO_FOCUS is not None and self.is_current and self.app.app_focus:
            self.focus_next(self.AUTO_FOCUS)

    @on(events.ScreenResume)
    def _resume(self, event: events.ScreenResume) -> None:
        # The parts of a screen that is new were styled just now, when they were mounted.
        event.refresh_styles &= self._was_shown
        self._was_shown = True
        if self._forgets is not None:
            self._forgets.stop()
        if self.subject is not None:
            # The key may have led back to this screen.
            self.subject.pause()
        self.refresh_all()
        self.refresh_soon()

    def on_screen_suspend(self, event: events.ScreenSuspend) -> None:
        # Behind a palette or a line to write in, it can still be seen.
        if isinstance(self.app.screen, BaseScreen):
            self._forgets = self.set_timer(UNUSED, self._forget_unless_shown, name="forget")
            self.context.forget_hint(event.time)
            if self.MODE and self.is_ready:
                self.show_all()

    def _forget_unless_shown(self) -> None:
        # A timer that ended just before it was stopped still calls this.
        if not self.is_current:
            self.forget()

    def forget(self) -> None:
        """Drop what was read and painted for this screen, while it is hidden."""
        forget_painted(self)

    def on_resize(self, event: events.Resize) -> None:  # noqa: ARG002
        self.refresh_soon()

    def refresh_soon(self) -> None:
        """Show everything anew after the next layout, because the lines of a pane depend on its width."""
        if not self.is_due:
            self.is_due = self.call_after_refresh(self.refresh_all)

    def refresh_all(self) -> None:
        """Paint everything, and set the screen's queries. A hidden screen does this when it is shown."""
        self.is_due, self._keys_decided_by = False, None
        if self.is_ready and self.is_in_front:
            self.show(self.context.snapshot)

    @property
    def is_ready(self) -> bool:
        """Return True if the parts of the screen are mounted: False while it is composed or removed."""
        return self.is_mounted and any(child.id == "keys" for child in reversed(self.children))

    def show(self, snapshot: Snapshot) -> None:
        """Show a snapshot, and set the screen's queries: the snapshot may have answers for another screen only."""
        self.ask()
        self.paint_frame(snapshot)
        self.paint(snapshot)
        before, self._keys_decided_by = self._keys_decided_by, self.what_decides_keys()
        if before is None or self._keys_decided_by != before:
            self.paint_keys_soon()

    def paint_frame(self, snapshot: Snapshot) -> None:
        """Paint the status bar, the heading, the alert bar and the footer."""
        badges = Badges(
            read_only=self.context.read_only,
            root=process.runs_as_root(),
            posix=env.is_posix(),
            foreign=self.context.read_only and self.context.team.directory.is_foreign(),
            offline=env.is_offline(self.context.team.environment) and snapshot.view.attached is None,
            others=tuple(dict.fromkeys(each.who for each in self.context.others)),
            reversed=self.context.reversed,
        )
        view, shown = snapshot.view, (snapshot.hinted, snapshot.away_since, badges, self.size.width)
        if view is not self._strip_shows[0] or shown != self._strip_shows[1]:
            self._strip_shows = (view, shown)
            self._still("strip").show([strip_line(snapshot, badges, self.size.width)])
        if self.MODE:
            self._paint_heading(snapshot)
        self.paint_times(snapshot)

    def _paint_heading(self, snapshot: Snapshot) -> None:
        mode = self.app.current_mode
        way: Line = ()
        name = VIEWS.get(mode)
        is_page = self.app.screen_stack[:1] != [self] and not self.IS_FORM and not self.TAB
        if name is not None and is_page and self.size.width >= MEDIUM:
            # The digit that goes to the view below: one that brought here may seem to do nothing.
            key = f"app.{mode}"
            way = (Span("· ", "dim"), Span(self.context.key(key), "key", key), Span(f" {name} ", "", key))
        self._still("heading").show([(*self.heading(snapshot, self.size.width - width_of(way)), *way)])

    def paint_times(self, snapshot: Snapshot) -> None:
        """Paint the lines around the body that change with time: alert bar and footer, and the heading of a page."""
        width, key = self.size.width, self.context.key
        if not self.MODE:
            self._paint_heading(snapshot)
        worst, acts = snapshot.view.needs[:1], False
        for need in worst:
            # The keys act on the worst need if it or its agent is selected.
            selection = self.selection()
            # On the row of its agent the key that opens the need would open the agent.
            opened = any(ident == "list.open" for ident, _ in KEYS_OF_NEED.get(need.kind, ()))
            is_for_agent = need.task is None and not opened
            of_agent = is_for_agent and [agent.name for agent in selection.agents] == [need.agent]
            acts = selection.needs == (need,) or (not selection.needs and not selection.tasks and of_agent)
        # While a text is written, the field must be left first.
        pressed = (lambda ident: f"{key('view.back')} {key(ident)}") if self._writes_text else key
        alert = alert_line(
            snapshot,
            self.context.now,
            width,
            read_only=self.context.read_only,
            pressed=pressed,
            opens=self.next_need in worst,
            own_keys=not self._writes_text,
            acts=acts,
            is_told=any(map(self.tells, worst)),
        )
        if self.subject is not None and worst and not trouble(snapshot, width):
            alert = others_line(snapshot.view, self.subject.need, self.context.now, width, pressed)
        # The form is where the first agent is hired.
        is_first = self.IS_FORM and not (snapshot.view.agents or snapshot.view.problem)
        is_told = (is_first or any(map(self.lists, worst))) and not trouble(snapshot, width)
        if self.context.coach is None:
            tips = []
        else:
            needed = snapshot.view.need(self.shown_need)
            # A request is shown once it is open, and not where it is listed.
            is_open = needed is not None and (needed.request_id is None or self.subject is not None)
            shown = needed.key if needed is not None and is_open else None
            tips = [(Span(f" {line}", "info"),) for line in self.context.coach(snapshot.view, shown, self.context.key)]
        lines = [*([] if is_told else [alert]), *tips]
        # Textual gives a widget of no lines one.
        self._still("alert").set_class(not lines, "-hidden")
        self._still("alert").show(lines)
        self.paint_footer()

    @property
    def _writes_text(self) -> bool:
        return hasattr(self.app.focused, "cursor_blink")

    def paint_keys(self) -> None:
        """Find out which keys work, and paint the footer."""
        if self.is_ready and self.is_active and not self.is_due:
            need = self.context.view.need(self.shown_need)
            first = [ident for ident, _ in answers_to(need, self.context.view)] if need is not None else ()
            self._footer = footer_of(self, self.keys_in_body, self.filled_key, first)
            self.paint_footer()

    def paint_keys_soon(self) -> None:
        """Do `paint_keys` after the next paint of the screen; at once if the footer is still empty."""
        if self.is_ready and not self._still("keys").lines:
            self.paint_keys()
        elif not self.are_keys_due:
            self.are_keys_due = self.call_after_refresh(self._paint_due_keys)

    def _paint_due_keys(self) -> None:
        self.are_keys_due = False
        self.paint_keys()

    def paint_keys_of(self, box: Screen[Any]) -> None:
        """Paint the keys of a dialog over this screen in the footer."""
        self._footer = footer_of(box)
        self.paint_footer()

    def paint_footer(self) -> None:
        """Paint the footer: its keys, or the last message in the place of the keys for the selection."""
        said, absence = self.context.said, self.context.absence
        if said is not None:
            lines = self._footer.lines_of(said.text, said.tone, self.size.width)
        elif self.MODE and absence and not self.context.absence_seen:
            key = self.context.key("app.absence")
            lines = self._footer.lines_of(
                f"{absence.describe(self.context.now)} · {key} lists it", "info", self.size.width
            )
        elif self.context.pointed[0]:
            lines = [self._footer.line_with(*self.context.pointed, self.size.width)]
        else:
            lines = [self._footer.line(self.size.width)]
        self._still("keys").show(lines)

    @on(events.MouseMove)
    def _tell_pointed(self, event: events.MouseMove) -> None:
        """Show in the footer what the key or the head of a column under the pointer does."""
        ident = str(event.style.meta.get("key", ""))
        below, _ = self.get_widget_at(*event.screen_offset)
        head = below.help_at(event.screen_offset) if isinstance(below, LineList) else ""
        pointed = (BY_ID[ident].says if ident in BY_ID else head), ident
        if pointed != self.context.pointed:
            self.context.pointed = pointed
            self.paint_footer()

    def _still(self, ident: str) -> StaticLines:
        return self.get_child_by_id(ident, StaticLines)

    @property
    def shown_need(self) -> str | None:
        """Return the key of the need that this screen shows; None if it shows none."""
        return self.subject.need if self.subject is not None else None

    @property
    def shown_request(self) -> str | None:
        """Return the id of the request that this screen shows; None if it shows none."""
        return self.subject.seen.id if self.subject is not None else None

    @property
    def next_need(self) -> Need | None:
        """Return the need that `!` opens; None without needs.

        It is the need after the one on this screen, if that was opened last; else the most urgent one.
        """
        needs, visited = self.context.view.needs, self.context.visited
        names = [need.key for need in needs]
        at = (names.index(visited) + 1) % len(names) if visited in names and visited == self.shown_need else 0
        return needs[at] if needs else None

    def narrow(self) -> None:
        """Paint the list after its filter, marks or order changed."""
        self.paint(self.context.snapshot)
        # Other rows are in sight now, and some views ask only about these.
        self.ask()
        self.refresh_bindings()

    def show_all(self) -> None:
        """Clear the filter. Called when the view is left."""
        if self.search.is_narrowed:
            self.search.clear()

    @on(LineList.Marked)
    @on(LineList.Reordered)
    def _list_changed(self) -> None:
        self.narrow()

    # -------------------------------------------------------------------------------- painting, as Textual would not
    # A screen is painted once after a key or a reading of the team, and only the lines that changed. Textual would
    # paint after the first of the messages that a key causes, and again a frame later after the others.

    @property
    def _update_timer(self) -> Timer:
        if self._settled_timer is None:
            settled = partial(paint_settled, self)
            self._settled_timer = self.set_interval(UPDATE_PERIOD, settled, name="paint", pause=True)
        return self._settled_timer

    def _compositor_refresh(self) -> None:
        if self.app._batch_count:  # noqa: SLF001
            # Textual renders the screen here, and then does not show it.
            self._repaint_required = True
        else:
            super()._compositor_refresh()

    def _screen_resized(self, size: Size) -> None:
        # A new screen is told its size twice after it was laid out for it. What has changed since asks for its layout.
        if self._compositor.size == size:
            self._compositor_refresh()
        else:
            super()._screen_resized(size)

    def _on_timer_update(self) -> None:
        is_held = bool(self.app._batch_count)  # noqa: SLF001
        super()._on_timer_update()
        if not is_held:
            self.after_paint()

    async def _on_idle(self, event: events.Idle) -> None:
        # What waits for the next paint needs the layout that follows from changes that are still on their way.
        if self._callbacks:
            event.prevent_default()
            self._update_timer.resume()

    # -------------------------------------------------------------------------------------------------- the keys

    @property
    def active_bindings(self) -> dict[str, ActiveBinding]:
        # Textual asks of each key whether it works: the selection is the same for all of them.
        self._judged = self.selection()
        try:
            return super().active_bindings
        finally:
            self._judged = None

    async def action_perform(self, ident: str) -> None:
        """Run the action of the key with the id `ident`."""
        result = self.actions[ident].run(self.selection())
        if result is not None:
            await result

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        # None, not False: a key that does nothing now is bound all the same, and says why.
        return True if action != "perform" or self.refusal(str(parameters[0])) is None else None

    def refusal(self, ident: str) -> str | None:
        """Return the reason why the action of the key `ident` does nothing now; None if it works."""
        changes = BY_ID[ident].changes
        if (forbidden := self._forbidden(BY_ID[ident])) is not None:
            return forbidden
        if changes and isinstance(self.focused, LineList) and self.focused.came_by_itself:
            return CAME_BY_ITSELF
        return self.actions[ident].available(self._judged or self.selection())

    def _forbidden(self, key: Key) -> str | None:
        if key.changes and self.context.read_only:
            return ONLY_LOOKING
        if key.changes and key.scope != "app" and (gone := why_gone(self.context)) is not None:
            return gone
        steered = key.steers and self.context.view.attached
        return "Claude Code steers these agents; crewboard only shows them" if steered else None

    def why_not(self, key: Key) -> str:
        """Return the reason why a key of the table does nothing here now."""
        if key.id in self.actions:
            return self.refusal(key.id) or "it works now: press it again"
        if (forbidden := self._forbidden(key)) is not None:
            return forbidden
        if self.IS_FORM and key.scope == "app":
            return "not while this form is open"
        if key.id in _WHY_NOTHING:
            return _WHY_NOTHING[key.id]
        is_bound = any(active.binding.id == key.id for active in self.active_bindings.values())
        return "there is nothing here to act on" if is_bound else f"only {WHERE[key.scope]}"

    @property
    def key_labels(self) -> Mapping[str, str]:
        """Return the present labels of keys, by id, where they differ from the key table."""
        selection = self.selection()
        labels = {ident: action.label(selection) for ident, action in self.actions.items()}
        own = self.focused.key_labels if isinstance(self.focused, CollapsibleList) else {}
        return {**{ident: label for ident, label in labels.items() if label is not None}, **own}

    def on_key(self, event: events.Key) -> None:
        """Say why a key does nothing here.

        If a text would begin with the key, the characters typed after it are not keys: `/` opens an input for them,
        after other keys they are dropped.
        """
        if event.is_printable and self.is_current and monotonic() < self._types_until:
            # It is bubbled no further, so that it is no key.
            event.stop()
            self._types_until = monotonic() + _TYPES_ON
            return
        active = binding_of(self, event.key)
        if not self.is_current or (active is not None and active.enabled):
            return
        # The key of the table that was pressed: the one that is bound here, else one that works elsewhere.
        # Of those, first one of the same subject as the keys of this screen.
        bound = active.binding.id if active is not None else None
        pressed = {event.key, event.character}
        found = [
            key
            for key in KEYS
            if (key.scope in WHERE or (key.id == bound and bound in self.actions))
            and key.says
            and not pressed.isdisjoint(self.context.keys_of(key.id))
        ]
        own = {BY_ID[ident].scope for ident in self.actions}
        near = {scope for scopes in GROUPS.values() if not own.isdisjoint(scopes) for scope in scopes}
        key = next(iter(sorted(found, key=lambda key: (key.id != bound, key.scope not in near))), None)
        if key is None:
            return
        if key.id == "view.filter" and not self.IS_FORM:
            self.context.say(_NOTHING_TO_FIND, "warning")
            self.context.navigator.ask(PromptLine("find", hint=_NOTHING_TO_FIND))
        else:
            # On a page of a request a key has the name that it has there: the same key approves, or sends back.
            name = (self.subject is not None and self.key_labels.get(key.id)) or command_name(key)
            self.context.say(f"{name}: {self.why_not(key)}", "warning")
            if key.id in _WRITES and key.id in self.actions:
                self._types_until = monotonic() + _TYPES_ON

    @on(events.Click)
    async def _open_menu_of_row(self, event: events.Click) -> None:
        """Open the menu for a row after a click on it with the right button, which has moved the cursor there."""
        rows = self.focused
        if event.button == _RIGHT and isinstance(rows, LineList) and event.get_content_offset(rows) is not None:
            await press(self.app, self, "view.menu")

    # --------------------------------------------------------------------------------------------- copy and leave

    def _copy(self, _: Selection) -> None:
        # What could act on a terminal must not do so where it is pasted.
        text = safe_text(self.copied)
        self.app.copy_to_clipboard(text)
        first, *more = text.strip().splitlines() or [""]
        self.context.say(f"copied: {clip(first, _COPIED)}{f' … and {len(more)} lines more' if more else ''}")

    @property
    def _open_layer(self) -> Layer | None:
        return next((layer for layer in self.back_layers if layer.is_open()), None)

    def _back_label(self, _: Selection) -> str | None:
        layer = self._open_layer
        return layer.label if layer is not None else None

    def back(self) -> None:
        """Close the first open layer of this screen; without one, leave it."""
        layer = self._open_layer
        if layer is not None:
            layer.close()
        else:
            self.leave()

    def leave(self) -> None:
        """Go from a view to the Board, or from a page to the screen below it."""
        if self.MODE:
            self.app.switch_mode("board")
        elif self.is_current:  # a second key may come while it goes
            self.dismiss()


def is_form(screen: Screen[Any]) -> bool:
    """Return True if leaving this screen would lose what was entered."""
    return isinstance(screen, BaseScreen) and screen.IS_FORM


class Panes:
    """Zooms a pane of a screen, so that it fills the body. The screen's AUTO_FOCUS names its main list."""

    def __init__(self, screen: BaseScreen) -> None:
        self._screen = screen
        self._opened_from: Widget | None = None
        self.zoomed: Widget | None = None
        self.actions = (
            Action(
                "view.zoom",
                lambda _: self._turn(),
                lambda _: None if self.zoomed is not None or self._count_shown() > 1 else "this pane is the only one",
            ),
        )
        self.layer = Layer(lambda: self.zoomed is not None, self.unzoom)
        """The layer of the zoomed pane, which Esc closes."""

    def _count_shown(self) -> int:
        """Return how many panes are shown: 2 stands for two or more. A part of the body without panes counts as one."""
        # Asked for the footer after every key: one walk takes a tenth of the time of queries.
        if not self._screen.is_ready:
            return 0
        body = self._screen.get_child_by_id("body")
        inside = list(body.walk_children(Widget))
        around = {above for pane in inside if pane.has_class("pane") for above in pane.ancestors}
        parts = [part for part in inside if part.parent is body or part.has_class("pane")]
        return len(list(itertools.islice((part for part in parts if part not in around and part.size), 2)))

    def _turn(self) -> None:
        focused = self._screen.focused
        if self.zoomed is not None:
            self.unzoom()
        elif focused is not None and focused.has_class("pane"):
            self._zoom(focused)

    def begin(self) -> None:
        """Show all panes, and give the focus to the main list."""
        if self.zoomed is not None:
            self.unzoom()
        if self._screen.is_ready:
            self._screen.call_after_refresh(self._screen.query_one(str(self._screen.AUTO_FOCUS)).focus)

    def show_below(self, pane: Widget, *, shown: bool) -> None:
        """Show the pane about the selected row, or hide it and give its room to the main list."""
        if pane.has_class("-hidden") == shown:
            pane.set_class(not shown, "-hidden")
            self._screen.query_one(str(self._screen.AUTO_FOCUS)).set_class(not shown, "-only")
            # An empty list has its words in the middle.
            self._screen.call_after_refresh(self._screen.refresh_all)

    def read_in(self, pane: Widget) -> None:
        """Zoom a pane, until Esc shows all panes again and gives the focus back to the list that had it."""
        self._opened_from = self._screen.focused
        self._zoom(pane)
        self._screen.call_after_refresh(pane.focus)

    @property
    def chosen(self) -> str:
        """Return the id of the pane that the user zoomed; empty if none is, or if it was zoomed to be read."""
        return self.zoomed.id or "" if self.zoomed is not None and self._opened_from is None else ""

    def zoom_again(self, ident: str) -> None:
        """Zoom the pane with this id, if the terminal is large enough to show it."""
        pane = next((pane for pane in self._screen.query(".pane") if pane.id == ident), None)
        if self.zoomed is None and pane is not None and pane.size.width and pane.size.height:
            self._zoom(pane)
            self._screen.call_after_refresh(pane.focus)

    def _zoom(self, pane: Widget) -> None:
        self.zoomed = pane
        for widget in self._screen.query("#body *"):
            widget.set_class(widget is pane, "-alone")
            widget.set_class(widget is not pane and widget not in pane.ancestors, "-away")
        self._screen.call_after_refresh(self._screen.refresh_all)

    def unzoom(self) -> None:
        """Show all panes again."""
        if self.zoomed is None:
            return
        self.zoomed = None
        for widget in self._screen.query("#body *"):
            widget.remove_class("-away", "-alone")
        if self._opened_from is not None:
            self._screen.call_after_refresh(self._opened_from.focus)
            self._opened_from = None
        self._screen.call_after_refresh(self._screen.refresh_all)


def why_gone(context: AppContext) -> str | None:
    """Return a sentence that the team was deleted, and how to open another; None if it was not.

    A hire would create another team of that name.
    """
    view = context.view
    return f"{view.problem}: {context.key('app.teams')} opens another one" if view.is_deleted else None


def first_hire(context: AppContext) -> str:
    """Return what to do first on a team without agents."""
    if (gone := why_gone(context)) is not None:
        return gone
    key = context.key("agent.hire")
    return "no agents yet" + ("" if context.read_only else f"; {key} hires an agent")
