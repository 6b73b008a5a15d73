"""The context that all screens share: the team, its newest snapshot, and the way to change it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msgspec import Struct, field
from textual.screen import Screen

from crewboard import AgentView, Request, Team, TeamView
from crewboard.records.agents import Profile
from crewboard.records.messages import LastVisit
from crewboard.records.team import Presence
from crewboard.store import operators
from crewboard.store.layout import TeamDirectory
from crewboard_tui.background import BackgroundJobs, Then, run_for_each
from crewboard_tui.drafts import Drafts, SentTexts
from crewboard_tui.keymap.bindings import BY_ID, show_key
from crewboard_tui.poller import TeamPoller
from crewboard_tui.queries import Query, Snapshot

if TYPE_CHECKING:
    from crewboard.readmodel.changes import Absence

T = TypeVar("T")

AGAIN_WITHIN = 2.0
"""Seconds within which a key must be pressed a second time, where the first press asks for that."""

SAID_FOR = 4.0
"""Seconds that the outcome of a command stays on the screen; a failure stays twice as long."""


class StatusMessage(Struct, frozen=True):
    """The last thing that a command said, from `at` until it is old news (monotonic seconds).

    `until` is None for what is being done: that is true as long as it takes, and no longer.
    """

    text: str
    tone: str
    until: float | None
    at: float = 0


class ShownPassage(Struct, frozen=True):
    """A passage of a text, without its blanks; `shown` has for each character 1 if it stood on the screen, else 0."""

    text: str
    shown: bytearray


class Navigator(Protocol):
    """The functions of the app with which views and actions open other views and pages."""

    def ask(
        self,
        prompt: Screen[str | None],
        given: Callable[[str], object] = lambda _: None,
        left: Callable[[], object] = lambda: None,
    ) -> None:
        """Ask for one line of text, and then call `given` with it, or `left` if the user left without one."""

    async def open_view(self, mode: str, at: str = "", *, find: str = "") -> None:
        """Show a numbered view without the pages above it, with the cursor on the row `at`, narrowed to `find`."""

    def open_agent(self, name: str, tab: str = "Now") -> None:
        """Open the page of an agent on one of its tabs."""

    def watch_agent(self, name: str, since: float) -> None:
        """Replace this screen with the page of an agent, and wait there for its result."""

    async def open_hire_form(self, hired: Callable[[str], None], like: AgentView | None = None, host: str = "") -> None:
        """Open the form that hires, filled as for the agent `like`; `hired` is called with the name of the new agent.

        A form that is open on another view is shown instead.
        """

    def open_request(self, request: Request) -> None:
        """Open the page of a request; it replaces the page of another request."""

    async def open_need(self, key: str) -> None:
        """Open what needs the operator: a request on its page, anything else in Needs-you."""

    async def open_team(self, team: TeamDirectory) -> None:
        """Show another team, or the form that would be lost with this one."""

    async def open_next_need(self) -> None:
        """Open the most urgent need, or the one after the need that this screen is about."""

    def open_menu(self) -> None:
        """Open the menu of what can be done with the selection."""

    def call_later(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
        """Call this once the messages that wait now are dealt with."""


Coach = Callable[[TeamView, str | None, Callable[[str], str]], list[str]]
"""Says in lines what to try next, given the team, the key of the need that is shown, and how the key of an id is
pressed."""


class AppContext(Struct):
    """The context that all screens of one team share. `left` is True after the dashboard switched to another team."""

    team: Team
    read_only: bool
    snapshot: Snapshot
    reading: TeamPoller
    jobs: BackgroundJobs
    announce: Callable[[], None]
    navigator: Navigator
    keys: Mapping[str, str] = field(default_factory=dict)
    queries: frozenset[Query[object]] = frozenset()
    """The queries of the screen, which are read with each snapshot."""
    reduced_motion: bool = False
    ascii_only: bool = False
    left: bool = False
    reversed: frozenset[str] = frozenset()
    """The kinds of new needs whose counts are reversed now in the status bar."""
    said: StatusMessage | None = None
    pointed: tuple[str, str] = "", ""
    """The help of what is below the pointer of the mouse, and the id of the key there; empty until it moves."""
    doing: str = ""
    coach: Coach | None = None
    """Tells a newcomer what to try next, in the demo until the user closes it."""
    visited: str | None = None
    """The need that was opened last, by its key."""
    drafts: Drafts = field(default_factory=Drafts)
    sent: SentTexts = field(default_factory=SentTexts)
    shown: dict[str, ShownPassage] = field(default_factory=dict)
    """The passages of requests that stood on the screen since the dashboard was opened, by name."""
    unsent_hire: tuple[str, Profile] | None = None
    """The name and the terms in the hire form when it was left without hiring."""
    visit: LastVisit = field(default_factory=LastVisit)
    """The view, sort orders and time with which the user left this team."""
    absence: Absence | None = None
    """The events since then; None before they are read, or if there are none."""
    absence_seen: bool = False
    dashboard: operators.OpenDashboard | None = None
    """The record of this dashboard that others see; None if it only looks."""

    @property
    def view(self) -> TeamView:
        """Return the team as it was read last."""
        return self.snapshot.view

    @property
    def others(self) -> tuple[Presence, ...]:
        """Return the other open dashboards of the team."""
        own = self.dashboard.id if self.dashboard is not None else ""
        return tuple(each for each in self.view.present if each.id != own)

    @property
    def now(self) -> float:
        """Epoch seconds by the team's clock."""
        return self.team.now()

    def key(self, ident: str) -> str:
        """Return how the key `ident` is pressed here, for a text that names it."""
        return show_key(self.keys_of(ident)[0], ascii_only=self.ascii_only)

    def keys_of(self, ident: str) -> list[str]:
        """Return the names of the keys that `ident` is bound to."""
        return self.keys.get(ident, BY_ID[ident].keys).split(",")

    def do(
        self,
        label: str,
        command: Callable[[], str],
        then: Then | None = None,
        *,
        settle: Then | None = None,
        undone: str = "",
        key: str = "",
    ) -> None:
        """Run a command in a thread and show what is being done, then its outcome.

        `then` is for the screen, and is not called once another team is shown. `settle` puts the drafts in order and
        touches no screen: it is called in any case, also when the dashboard was left before the outcome came. If the
        database is away, the outcome is that this is `undone`, and that `key` does it once the database is back.
        """

        def after(worked: bool, says: str) -> None:  # noqa: FBT001
            if then is not None and not self.left:
                then(worked, says)

        self._announce(label)
        again = f"press {self.key(key)} again" if key else "try again"
        if_away = f"{undone or f'{label} failed'}: the database is away; {again} when it is back"
        self.jobs.start(label, command, after, settle, if_away)

    def do_for_each(self, label: str, names: Sequence[str], command: Callable[[str], str], done: str) -> None:
        """Run a command for each of these at once, as `do` does, and show the outcome as `run_for_each` says it."""
        self.do(f"{label} {', '.join(names)}", partial(run_for_each, names, command, done))

    async def wait_for(self, label: str, command: Callable[[], T], says: Callable[[T], str]) -> T | None:
        """Run a command in a thread as `do` does, and return what it returns; `says` returns the outcome in words.

        None is returned if it failed, or if another team is shown meanwhile.
        """
        self._announce(label)
        if_away = f"{label} failed: the database is away; try again when it is back"
        value = await self.jobs.wait_for(label, command, says, if_away)
        return None if self.left else value

    def _announce(self, label: str) -> None:
        """Show what is being done."""
        self.doing = label
        self.said = _in_progress(label)
        self.announce()

    def note_read(self, command: Callable[[], object]) -> None:
        """Run a command that notes what was read, and report only a failure.

        In a thread, because another process may hold the lock.
        """

        def run() -> str:
            command()
            return ""

        self.jobs.start("noting what was read", run)

    def say(self, text: str, tone: str = "success", lasts: float | None = None) -> None:
        """Show a sentence in the footer for a while, or for as many seconds as it is true."""
        if lasts is None:
            lasts = 2 * SAID_FOR if tone == "error" else SAID_FOR
        now = monotonic()
        self.said = StatusMessage(text, tone, now + lasts, now)
        self.announce()

    def forget_hint(self, left: float) -> None:
        """Forget a hint that was said before `left` (monotonic seconds), when its screen was left."""
        if self.said is not None and self.said.tone.startswith("warning") and self.said.at < left:
            self.said = None
            self.announce()

    def hush(self) -> bool:
        """Clear the shown message if it is old; return True if there was one.

        What is still being done is said again.
        """
        is_busy = any(label == self.doing for label, _ in self.jobs.running())
        if self.said is None or (is_busy if self.said.until is None else monotonic() < self.said.until):
            return False
        self.said = _in_progress(self.doing) if is_busy else None
        return True

    def look_at(self, queries: Iterable[Query[object]]) -> None:
        """Have read what a screen asks."""
        self.queries = frozenset(queries)
        self.reading.look_at(self.queries)

    @property
    def is_answered(self) -> bool:
        """Return True if all that the screen asked was read, as far as it can be."""
        return self.snapshot.problem is not None or self.queries <= self.snapshot.answers.keys()


def _in_progress(label: str) -> StatusMessage:
    return StatusMessage(f"{label} …", "info", None)
