"""The frame of every full screen: counter strip, heading, body, alert line, footer, status line."""

from collections.abc import Iterable
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.screen import Screen
from textual.widget import Widget

from crewboard_tui import fmt, keys
from crewboard_tui.desk import Desk
from crewboard_tui.lines import Line, Span, line, say, wrap
from crewboard_tui.reading import Interest, Snapshot
from crewboard_tui.widgets.alert import alert_line
from crewboard_tui.widgets.columns import HUGE, MEDIUM, SHORT, TALL, WIDE
from crewboard_tui.widgets.key_line import footer_lines
from crewboard_tui.widgets.rows import Rows
from crewboard_tui.widgets.still import Still
from crewboard_tui.widgets.strip import Badges, strip_line

CHANGING = frozenset(key.action for key in keys.KEYS if key.changes)
"""Actions that change the team: absent where the dashboard is read-only."""


class Framed(Screen[None]):
    """A full screen. It shows snapshots as they come and says what it needs to have read."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (MEDIUM, "-medium"), (WIDE, "-wide"), (HUGE, "-huge")]
    VERTICAL_BREAKPOINTS = [(0, "-short"), (SHORT, "-middle"), (TALL, "-tall")]
    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("view", "back")]
    ESCAPE_TO_MINIMIZE = False

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self.desk = desk

    # ------------------------------------------------------------------------------------ what a screen fills in

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
        self.paint(self.desk.snapshot)

    def interest(self) -> Interest:
        """What this screen shows beyond the roster."""
        return Interest()

    # ------------------------------------------------------------------------------------------------- the frame

    def compose(self) -> ComposeResult:
        yield Still(id="strip")
        yield Still(id="heading")
        with Container(id="body"):
            yield from self.body()
        yield Still(id="alert")
        yield Still(id="keys")
        yield Still(id="status")

    def on_mount(self) -> None:
        self.bindings_updated_signal.subscribe(self, lambda _: self.paint_keys())
        self.refresh_all()

    def on_screen_resume(self) -> None:
        self.refresh_all()
        self.call_after_refresh(self.refresh_all)

    def on_resize(self, event: events.Resize) -> None:  # noqa: ARG002
        # What stands in a pane depends on its width, which is known once it is laid out.
        self.call_after_refresh(self.refresh_all)

    def refresh_all(self) -> None:
        """Show everything anew, and have what is needed read."""
        if not self.is_ready:
            return
        self.desk.look_at(self.interest())
        self.show(self.desk.snapshot)

    @property
    def is_ready(self) -> bool:
        """Whether its parts are there: not yet while it is composed, no more while it is taken down."""
        return self.is_mounted and bool(self.query("#status"))

    def show(self, snapshot: Snapshot) -> None:
        """Show a snapshot."""
        self.paint_frame(snapshot)
        self.paint(snapshot)
        self.paint_keys()

    def paint_frame(self, snapshot: Snapshot) -> None:
        """Strip, heading, alert and status line."""
        width = self.size.width
        self._still("strip").show([strip_line(snapshot, Badges(read_only=self.desk.read_only), width)])
        self._still("heading").show([self.heading(snapshot, width)])
        alert = alert_line(snapshot, self.desk.now, width, read_only=self.desk.read_only, pressed=self.desk.key)
        self._still("alert").show([alert])
        self.paint_status()

    def paint_keys(self) -> None:
        """The footer."""
        if self.is_ready and self.is_current:
            most = 2 if self.size.height >= TALL else 1
            self._still("keys").show(footer_lines(self, self.size.width, most))

    def paint_status(self) -> None:
        """What the last command said, else facts about the team."""
        said = self.desk.said
        if said is not None:
            pieces = wrap(said.text, max(10, self.size.width - 2))[:3]
            self._still("status").show([line(" ", say(piece, said.tone)) for piece in pieces])
        else:
            self._still("status").show([self._facts()] if self.size.height >= SHORT else [])

    def _facts(self) -> Line:
        view = self.desk.snapshot.view
        supervisor = f"supervisor {view.supervisor.pid}" if view.supervisor.alive else "no supervisor"
        return (Span(" "), say(f"{fmt.homely(view.root)} · {supervisor} · {len(view.agents)} agents", "dim"))

    def _still(self, ident: str) -> Still:
        return self.query_one(f"#{ident}", Still)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        if action in CHANGING and self.desk.read_only:
            return False
        if action in CHANGING and isinstance(self.focused, Rows) and self.focused.came_by_itself:
            return None
        return self.offers(action)

    def offers(self, action: str) -> bool | None:
        """Whether an action of this screen works now: yes, no (False), or not at the moment (None)."""
        return action not in ("filter", "turn_group", "zoom", "copy")

    def action_back(self) -> None:
        self.dismiss()
