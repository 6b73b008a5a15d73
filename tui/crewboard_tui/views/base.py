"""The frame of every full screen: counter strip, heading, body, alert line, footer, status line."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.screen import Screen
from textual.widget import Widget

from crewboard.readmodel.team import Need
from crewboard_tui.context import AppContext
from crewboard_tui.keymap import bindings
from crewboard_tui.poller import Interest, Snapshot
from crewboard_tui.render import formats
from crewboard_tui.render.lines import Line, Span, clip, line, say, width_of, wrap
from crewboard_tui.render.sanitize import safe_text
from crewboard_tui.views.board.columns import HUGE, MEDIUM, SHORT, TALL, WIDE
from crewboard_tui.views.needs.rows import need_key
from crewboard_tui.views.unavailable_keys import DeadKeys
from crewboard_tui.widgets.alert_bar import alert_line
from crewboard_tui.widgets.collapsible_list import CollapsibleList
from crewboard_tui.widgets.footer import footer_lines
from crewboard_tui.widgets.line_list import LineList
from crewboard_tui.widgets.line_view import LineView
from crewboard_tui.widgets.static_lines import StaticLines
from crewboard_tui.widgets.status_bar import Badges, strip_line
from crewboard_tui.widgets.view_tabs import VIEWS

CHANGING = frozenset(key.action for key in bindings.KEYS if key.changes)
"""Actions that change the team: absent where the dashboard is read-only."""


_COPIED = 60
"""Cells for the beginning of what was copied."""


class Framed(DeadKeys):
    """A full screen. It shows snapshots as they come and says what it needs to have read."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (MEDIUM, "-medium"), (WIDE, "-wide"), (HUGE, "-huge")]
    VERTICAL_BREAKPOINTS = [(0, "-short"), (SHORT, "-middle"), (TALL, "-tall")]
    BINDINGS: ClassVar[list[BindingType]] = [*bindings.bindings("view", "copy", "back")]
    ESCAPE_TO_MINIMIZE = False

    def __init__(self, desk: AppContext) -> None:
        super().__init__()
        self.context = desk
        self._is_due = False
        """Whether all is shown anew after the next refresh."""

    MODE: ClassVar[str] = ""
    """The mode of a numbered view; empty on a page."""

    IS_REQUEST: ClassVar[bool] = False
    """Whether its keys answer a request."""

    # ------------------------------------------------------------------------------------ what a screen fills in

    def go_to(self, key: str) -> None:
        """Put the cursor on the row `key` of the list that this screen is about."""

    @property
    def is_over(self) -> bool:
        """Whether what it asks for needs nobody any more."""
        return False

    def body(self) -> Iterable[Widget]:
        """The widgets between heading and alert line."""
        return ()

    def heading(self, snapshot: Snapshot, width: int) -> Line:  # noqa: ARG002
        """The line below the strip."""
        return ()

    def paint(self, snapshot: Snapshot) -> None:
        """Show a snapshot in the body."""

    def tick(self) -> None:
        """Show the same snapshot a second later: ages."""
        self.paint(self.context.snapshot)

    def interest(self) -> Interest:
        """What this screen shows beyond the roster."""
        return Interest()

    def keep_drafts(self) -> None:
        """Put what is being written among the drafts: asked once a second, and when the screen goes."""

    @property
    def key_labels(self) -> Mapping[str, str]:
        """What keys are called here and now, by id, where that is not what the table calls them."""
        return self.focused.key_labels if isinstance(self.focused, CollapsibleList) else {}

    @property
    def copied(self) -> str:
        """What is copied from here: of a list the line or entry under the cursor, of a text all of it."""
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
        yield StaticLines(id="alert")
        yield StaticLines(id="keys")
        yield StaticLines(id="status")

    def on_mount(self) -> None:
        self.bindings_updated_signal.subscribe(self, lambda _: self.paint_keys())
        self.refresh_all()

    def on_screen_resume(self) -> None:
        self.refresh_all()
        self.refresh_soon()

    def on_screen_suspend(self, event: events.ScreenSuspend) -> None:
        # Behind a palette or a line to write in, it can still be seen.
        if isinstance(self.app.screen, Framed):
            self.context.forget_hint(event.time)

    def on_resize(self, event: events.Resize) -> None:  # noqa: ARG002
        self.refresh_soon()

    def refresh_soon(self) -> None:
        """Show everything anew once it is laid out: what stands in a pane depends on its width."""
        if not self._is_due:
            self._is_due = self.call_after_refresh(self.refresh_all)

    def refresh_all(self) -> None:
        """Show everything anew, and have what is needed read."""
        self._is_due = False
        if not self.is_ready:
            return
        self.show(self.context.snapshot)

    @property
    def is_ready(self) -> bool:
        """Whether its parts are there: not yet while it is composed, no more while it is taken down."""
        return self.is_mounted and any(child.id == "status" for child in reversed(self.children))

    def show(self, snapshot: Snapshot) -> None:
        """Show a snapshot; one that was read for a screen behind this one is followed by one that is for this."""
        self.context.look_at(self.interest())
        self.paint_frame(snapshot)
        self.paint(snapshot)
        self.paint_keys()

    def paint_frame(self, snapshot: Snapshot) -> None:
        """Strip, heading, alert and status line."""
        width = self.size.width
        badges = Badges(read_only=self.context.read_only, offline=self.context.team.offline)
        self._still("strip").show([strip_line(snapshot, badges, width)])
        way = self._way_to_view()
        self._still("heading").show([(*self.heading(snapshot, width - width_of(way)), *way)])
        opens = self.next_need in snapshot.view.needs[:1]
        alert = alert_line(
            snapshot, self.context.now, width, read_only=self.context.read_only, pressed=self.context.key, opens=opens
        )
        self._still("alert").show([alert])
        self.paint_status()

    def _way_to_view(self) -> Line:
        """On a page, the digit that goes to the view below: one that brought here may seem to do nothing."""
        mode = self.app.current_mode
        name = next((name for view, _, name in VIEWS if view == mode), None)
        if name is None or self.IS_FORM or self.size.width < MEDIUM or self.app.screen_stack[:1] == [self]:
            return ()
        key = f"app.{mode}"
        return (Span("· ", "dim"), Span(self.context.key(key), "key", key), Span(f" {name} ", "", key))

    def paint_keys(self) -> None:
        """The footer."""
        if self.is_ready and self.is_current:
            most = 2 if self.size.height >= TALL else 1
            self._still("keys").show(footer_lines(self, self.size.width, most))

    def paint_keys_of(self, box: Screen[Any]) -> None:
        """The keys of a box that stands on this screen, in the footer's place, which keeps its height."""
        footer = self._still("keys")
        lines = footer_lines(box, self.size.width, 1)
        footer.show([*lines, *[()] * (len(footer.lines) - len(lines))])

    def paint_status(self) -> None:
        """What the last command said, else facts about the team."""
        said = self.context.said
        if said is not None:
            pieces = wrap(said.text, max(10, self.size.width - 2))[:3]
            self._still("status").show([line(" ", say(piece, said.tone)) for piece in pieces])
        else:
            self._still("status").show([self._facts()] if self.size.height >= SHORT else [])

    def _facts(self) -> Line:
        view = self.context.snapshot.view
        supervisor = f"supervisor {view.supervisor.pid}" if view.supervisor.alive else "no supervisor"
        team = f"{len(view.agents)} agent{'' if len(view.agents) == 1 else 's'}"
        damage = (say(f"damaged: {formats.places(view.damage)}", "error"), Span(" · ", "dim")) if view.damage else ()
        return (Span(" "), *damage, say(f"{formats.homely(view.root)} · {supervisor} · {team}", "dim"))

    def _still(self, ident: str) -> StaticLines:
        return self.get_child_by_id(ident, StaticLines)

    @property
    def shown_need(self) -> str | None:
        """The need that this screen is about, by its key."""
        return None

    @property
    def next_need(self) -> Need | None:
        """What the key for the next need opens: the most urgent, or what comes behind the one that was opened here."""
        needs, visited = self.context.snapshot.view.needs, self.context.visited
        names = [need_key(need) for need in needs]
        at = (names.index(visited) + 1) % len(names) if visited in names and visited == self.shown_need else 0
        return needs[at] if needs else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        if action in CHANGING and self.context.read_only:
            return False
        if action in CHANGING and isinstance(self.focused, LineList) and self.focused.came_by_itself:
            return None
        return self.offers(action)

    def offers(self, action: str) -> bool | None:
        """Whether an action of this screen works now: yes, no (False), or not at the moment (None)."""
        if action == "copy":
            return bool(self.copied)
        return action not in ("filter", "turn_group", "zoom")

    def action_copy(self) -> None:
        """Copy what was shown: what could act on a terminal must not do so where it is pasted."""
        text = safe_text(self.copied)
        self.app.copy_to_clipboard(text)
        first, *more = text.strip().splitlines() or [""]
        self.context.say(f"copied: {clip(first, _COPIED)}{f' … and {len(more)} lines more' if more else ''}")

    def action_back(self) -> None:
        if self.is_current:  # a second key may come while it goes
            self.dismiss()


def is_form(screen: Screen[Any]) -> bool:
    """Whether something is being filled in here that leaving would lose."""
    return isinstance(screen, Framed) and screen.IS_FORM
