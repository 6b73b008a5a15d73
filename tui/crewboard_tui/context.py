"""The context that all screens of one team share: the team, its newest snapshot, jobs, drafts, navigation."""

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
    """The message in the footer. It was shown at `at` and is removed at `until` (monotonic seconds).

    `until` is None while a command runs: the message then stays until it ends.
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
    """The functions of the app by which views and actions open other views and pages."""

    def ask(
        self,
        prompt: Screen[str | None],
        given: Callable[[str], object] = lambda _: None,
        left: Callable[[], object] = lambda: None,
    ) -> None:
        """Ask for one line of text, and call `given` with it, or `left` if the user leaves the prompt."""

    async def open_view(self, mode: str, at: str = "", *, find: str = "") -> None:
        """Show a numbered view without the pages above it, with the cursor on the row `at`, narrowed to `find`."""

    def open_agent(self, name: str, tab: str = "Now", result_in: str = "") -> None:
        """Open the page of an agent on one of its tabs; in Mail at its newest result in the mailbox `result_in`."""

    def watch_agent(self, name: str, since: float) -> None:
        """Replace this screen with the page of an agent, and wait there for its result.

        A result counts if it came after `since` (epoch seconds).
        """

    async def open_hire_form(self, hired: Callable[[str], None], like: AgentView | None = None, host: str = "") -> None:
        """Open the form that hires, filled as for the agent `like`; `hired` is called with the name of the new agent.

        `host` is the host on which it shall run. A form that is open on another view is shown instead.
        """

    def open_request(self, request: Request) -> None:
        """Open the page of a request; it replaces the page of another request."""

    async def open_need(self, key: str) -> None:
        """Open the need with this key: a request on its page, anything else in Needs-you."""

    async def open_team(self, team: TeamDirectory) -> None:
        """Show another team; if a form is open, which would be lost, show the form instead."""

    async def open_next_need(self) -> None:
        """Open the need after the one that this screen shows, else the most urgent one."""

    def open_menu(self) -> None:
        """Open the menu of what can be done with the selection."""

    def call_later(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
        """Call `callback` once the messages that wait now are handled; return False if the app is closing."""


Coach = Callable[[TeamView, str | None, Callable[[str], str]], list[str]]
"""A function that returns, in lines, what to try next.

Its arguments: the team, the key of the need that is shown, and a function that returns how the key with an id is
pressed.
"""


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
    """The help of what is below the mouse pointer, and the id of the key there; empty until the pointer is moved."""
    doing: str = ""
    coach: Coach | None = None
    """Returns what a newcomer can try next: in the demo, and with a first agent on the offline model."""
    visited: str | None = None
    """The key of the need that was opened last."""
    drafts: Drafts = field(default_factory=Drafts)
    sent: SentTexts = field(default_factory=SentTexts)
    shown: dict[str, ShownPassage] = field(default_factory=dict)
    """The passages of requests that stood on the screen since the dashboard was opened, by name."""
    unsent_hire: tuple[str, Profile] | None = None
    """The name and the terms in the hire form when it was left without hiring."""
    visit: LastVisit = field(default_factory=LastVisit)
    """The view, sort orders and time with which the user left this team."""
    absence: Absence | None = None
    """What happened since the user left the team; None before it is read, or if nothing happened."""
    absence_seen: bool = False
    dashboard: operators.OpenDashboard | None = None
    """The record of this dashboard that others see; None if it is read-only."""

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
        """Return the time by the team's clock, in epoch seconds."""
        return self.team.now()

    def key(self, ident: str) -> str:
        """Return how the key `ident` is pressed here, for a text that names it."""
        return show_key(self.keys_of(ident)[0], ascii_only=self.ascii_only)

    def keys_of(self, ident: str) -> list[str]:
        """Return the names of the keys that the id `ident` is bound to, such as `ctrl+s`."""
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
        """Run a command in a thread and show `label` while it runs, then the message that it returns.

        `then` is for the screen, and is not called once another team is shown. `settle` puts the drafts in order and
        touches no screen: it is always called, also when the dashboard was left before the command ended. If the
        database is away, the message begins with `undone`, such as `not approved` (if empty: `LABEL failed`), and says
        to press the key with the id `key` again when the database is back.
        """

        def after(worked: bool, says: str) -> None:  # noqa: FBT001
            if then is not None and not self.left:
                then(worked, says)

        self._announce(label)
        again = f"press {self.key(key)} again" if key else "try again"
        if_away = f"{undone or f'{label} failed'}: the database is away; {again} when it is back"
        self.jobs.start(label, command, after, settle, if_away)

    def do_for_each(self, label: str, names: Sequence[str], command: Callable[[str], str], done: str) -> None:
        """Run a command for each of `names` at the same time, as `do` does, and show the message of `run_for_each`."""
        self.do(f"{label} {', '.join(names)}", partial(run_for_each, names, command, done))

    async def wait_for(self, label: str, command: Callable[[], T], says: Callable[[T], str]) -> T | None:
        """Run a command in a thread as `do` does, and return what it returns; `says` returns the message about it.

        None is returned if the command failed, or if another team is shown meanwhile.
        """
        self._announce(label)
        if_away = f"{label} failed: the database is away; try again when it is back"
        value = await self.jobs.wait_for(label, command, says, if_away)
        return None if self.left else value

    def _announce(self, label: str) -> None:
        """Show in the footer that a command runs."""
        self.doing = label
        self.said = _in_progress(label)
        self.announce()

    def note_read(self, command: Callable[[], object]) -> None:
        """Run a command that records what the user has read, and report only a failure.

        It runs in a thread, because another process may hold the lock.
        """

        def run() -> str:
            command()
            return ""

        self.jobs.start("noting what was read", run)

    def say(self, text: str, tone: str = "success", lasts: float | None = None) -> None:
        """Show a sentence in the footer for `lasts` seconds: by default `SAID_FOR`, and twice that for an error."""
        if lasts is None:
            lasts = 2 * SAID_FOR if tone == "error" else SAID_FOR
        now = monotonic()
        self.said = StatusMessage(text, tone, now + lasts, now)
        self.announce()

    def forget_hint(self, left: float) -> None:
        """Remove a warning from the footer that was shown before its screen was `left` (monotonic seconds)."""
        if self.said is not None and self.said.tone.startswith("warning") and self.said.at < left:
            self.said = None
            self.announce()

    def hush(self) -> bool:
        """Remove a message whose time is over from the footer; return True if there was one.

        The label of a command that still runs is then shown again.
        """
        is_busy = any(label == self.doing for label, _ in self.jobs.running())
        if self.said is None or (is_busy if self.said.until is None else monotonic() < self.said.until):
            return False
        self.said = _in_progress(self.doing) if is_busy else None
        return True

    def look_at(self, queries: Iterable[Query[object]]) -> None:
        """Set the queries of the screen, which are read at once and then with each snapshot."""
        self.queries = frozenset(queries)
        self.reading.look_at(self.queries)

    @property
    def is_answered(self) -> bool:
        """Return True if all queries of the screen are answered, or if the last reading failed."""
        return self.snapshot.problem is not None or self.queries <= self.snapshot.answers.keys()


def _in_progress(label: str) -> StatusMessage:
    return StatusMessage(f"{label} …", "info", None)
