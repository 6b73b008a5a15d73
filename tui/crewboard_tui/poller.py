"""Reading the team, away from the screen: one thread folds the files, and tells the app only what is new.

The app says what it shows (`Interest`); what it does not show is not read. One message goes to the app for each batch
of changes, at most eight a second while they keep coming, and none while nothing changes.
"""

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from crewboard.errors import CrewboardError
from crewboard.names import LEAD, OPERATOR
from crewboard.protocol import supervisor_client
from crewboard.protocol.addressing import mailboxes
from crewboard.readmodel.activity import Activity, ActivityReader
from crewboard.readmodel.crash_report import CrashReport, examine
from crewboard.readmodel.file_activity import FileAccess, FileAccessReader, FileActivity
from crewboard.readmodel.mail import Letter, MailReader
from crewboard.readmodel.processes import KernelProbe, Probe
from crewboard.readmodel.reader import TeamReader
from crewboard.readmodel.team import SupervisorView, TeamView
from crewboard.readmodel.usage import Call, CallReader, rate
from crewboard.readmodel.watcher import GATHER, Watcher
from crewboard.records import OperatorState
from crewboard.store import files, json_files
from crewboard.store.layout import AgentDirectory, TeamDirectory
from crewboard_tui.views.agent.process_history import ProcessHistory, ProcessHistoryReader

BURST = 1 / 8
"""Seconds between two publications while changes keep coming."""

RING_EVERY = 5.0
"""Seconds between two attempts to wake a supervisor that is gone."""

_LIVE_TAIL = 16 * 1024
_FEED_MOST = 400
_KEPT = 64
"""Readers of one kind that are kept, or more where more agents are on the team, who are read in turn."""

_SEATS = 2
"""Mailboxes beside those of the agents: the operator's and the lead's."""

R = TypeVar("R")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Interest:
    """What is on the screen: whose work, mailbox, death, mail to others, model calls and process.

    `everybody` is the work of all, `touches` the files that they read and changed, `rate` what an hour of all costs.
    """

    agent: str | None = None
    mailbox: str | None = None
    crash_report: str | None = None
    sent: str | None = None
    calls: str | None = None
    process: str | None = None
    everybody: bool = False
    rate: bool = False
    touches: bool = False


@dataclass(frozen=True)
class FeedLine:
    """One thing that somebody did."""

    agent: str
    what: Activity


@dataclass(frozen=True)
class Snapshot:
    """The team and what the screen shows of it beyond the roster, read at one time.

    `live` is the reply that is being streamed by `interest.agent`. `mail_end` is the byte of the mailbox up to which
    `letters` were read, `sent` is what `interest.sent` wrote to others, `prompts` what it was hired to do. `calls` are
    the model calls of `interest.calls`, oldest first, `rate` is what the team costs in dollars an hour, None where that
    is not known. `touches` are the files that everybody read and changed, oldest first, `vitals` is the process of
    `interest.process`. `hinted` says whether file events arrive.
    """

    view: TeamView
    interest: Interest = Interest()
    activity: tuple[Activity, ...] = ()
    live: str = ""
    letters: tuple[Letter, ...] = ()
    mail_end: int = 0
    sent: tuple[Letter, ...] = ()
    prompts: tuple[Letter, ...] = ()
    crash_report: CrashReport | None = None
    feed: tuple[FeedLine, ...] = ()
    calls: tuple[Call, ...] = ()
    rate: float | None = None
    touches: FileActivity = field(default_factory=FileActivity)
    vitals: ProcessHistory | None = None
    hinted: bool = True
    problem: str | None = None


@dataclass
class Pace:
    """How long to gather before the next publication: a moment after quiet, longer in a burst."""

    recent: deque[float] = field(default_factory=lambda: deque(maxlen=4))

    def note(self, now: float) -> None:
        """Something was published."""
        self.recent.append(now)

    def delay(self, now: float) -> float:
        """Seconds to gather from now on."""
        busy = len(self.recent) == self.recent.maxlen and now - self.recent[0] < 1
        return BURST if busy else GATHER


class Details:
    """Reads what the screen shows beyond the roster. Readers are kept, so that coming back costs nothing."""

    def __init__(self, team: TeamDirectory, probe: Probe) -> None:
        self._team = team
        self._kept = _KEPT
        self._vitals = ProcessHistoryReader(team, probe)
        self._activity: OrderedDict[str, ActivityReader] = OrderedDict()
        self._mail: OrderedDict[str, MailReader] = OrderedDict()
        self._calls: OrderedDict[str, CallReader] = OrderedDict()
        self._touches: OrderedDict[str, FileAccessReader] = OrderedDict()
        self._found: list[FileAccess] = []
        self._index = FileActivity()
        self._autopsies: dict[str, tuple[object, CrashReport]] = {}

    def read(self, view: TeamView, interest: Interest) -> Snapshot:
        """Everything that `interest` names."""
        self._vitals.note(view)
        self._kept = max(_KEPT, len(view.agents) + _SEATS)
        shown = Snapshot(view=view, interest=interest)
        if interest.agent and view.agent(interest.agent):
            shown = replace(
                shown, activity=self._activity_of(interest.agent), live=read_live(self._team.agent(interest.agent))
            )
        if interest.mailbox:
            reader = self._mail_of(interest.mailbox)
            shown = replace(shown, letters=tuple(reader.read()), mail_end=reader.offset)
        if interest.sent:
            shown = replace(shown, sent=self._sent_by(view, interest.sent), prompts=self._prompts_of(interest.sent))
        if interest.crash_report:
            shown = replace(shown, crash_report=self._autopsy(view, interest.crash_report))
        if interest.everybody:
            shown = replace(shown, feed=self._feed(view))
        if interest.calls:
            shown = replace(shown, calls=tuple(self._calls_of(interest.calls).read()))
        if interest.rate:
            shown = replace(shown, rate=rate([self._calls_of(agent.name) for agent in view.agents], view.now))
        if interest.touches:
            shown = replace(shown, touches=self._touched(view))
        if interest.process:
            shown = replace(shown, vitals=self._vitals.read(view, interest.process))
        return shown

    def _mail_of(self, name: str) -> MailReader:
        return self._keep(self._mail, name, lambda: MailReader(self._team, name, since=self._read_to(name)))

    def _read_to(self, name: str) -> int | None:
        """How far the operator has read a mailbox of theirs: what is new there is shown, however much it is."""
        if name not in (OPERATOR, LEAD):
            return None
        state = json_files.load_or_none(self._team.operator, OperatorState)
        return state.read.get(name, 0) if state else 0

    def _sent_by(self, view: TeamView, author: str) -> tuple[Letter, ...]:
        """Read in the mailboxes that it lies in: there it has its other two times."""
        boxes = set(mailboxes(view.names)) - {author}
        found = [letter for name in sorted(boxes) for letter in self._mail_of(name).read()]
        return tuple(letter for letter in found if letter.message.from_ == author)

    def _prompts_of(self, name: str) -> tuple[Letter, ...]:
        reader = self._mail_of(name)
        reader.read()
        return tuple(reader.prompts)

    def _activity_of(self, name: str) -> tuple[Activity, ...]:
        return tuple(self._keep(self._activity, name, lambda: ActivityReader(self._team.agent(name))).read())

    def _calls_of(self, name: str) -> CallReader:
        return self._keep(self._calls, name, lambda: CallReader(self._team.agent(name)))

    def _touched(self, view: TeamView) -> FileActivity:
        """Indexed here, away from the screen, and only when something was touched."""
        found = [touch for agent in view.agents for touch in self._touches_of(agent.name).read()]
        if found != self._found:
            self._found, self._index = found, FileActivity(found)
        return self._index

    def _touches_of(self, name: str) -> FileAccessReader:
        return self._keep(self._touches, name, lambda: FileAccessReader(self._team.agent(name)))

    def _keep(self, readers: OrderedDict[str, R], name: str, make: Callable[[], R]) -> R:
        """The reader of `name`, made if need be; the ones that were used longest ago are let go."""
        if name not in readers:
            readers[name] = make()
            while len(readers) > self._kept:
                readers.popitem(last=False)
        readers.move_to_end(name)
        return readers[name]

    def _feed(self, view: TeamView) -> tuple[FeedLine, ...]:
        lines = [FeedLine(agent.name, what) for agent in view.agents for what in self._activity_of(agent.name)]
        return tuple(sorted(lines, key=lambda each: each.what.ts)[-_FEED_MOST:])

    def _autopsy(self, view: TeamView, name: str) -> CrashReport | None:
        agent = view.agent(name)
        if agent is None or agent.alive:
            return None
        evidence = (agent.run, agent.exit, agent.unread, view.tasks)
        known = self._autopsies.get(name)
        if known is None or known[0] != evidence:
            known = self._autopsies[name] = (evidence, examine(self._team, view, agent))
        return known[1]


def read_live(agent: AgentDirectory) -> str:
    """The reply that is being streamed, or its end if it is long."""
    try:
        with open(agent.live, "rb", opener=files.open_existing) as file:
            file.seek(max(0, file.seek(0, 2) - _LIVE_TAIL))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


class TeamPoller:
    """The thread that reads. `publish` is called in it, with what is new."""

    def __init__(
        self,
        team: TeamDirectory,
        publish: Callable[[Snapshot], object],
        *,
        clock: Callable[[], float],
        probe: Probe | None = None,
        may_ring: bool = True,
    ) -> None:
        self._team = team
        self._publish = publish
        probe = probe or KernelProbe()
        self._reader = TeamReader(team, clock=clock, probe=probe)
        self._details = Details(team, probe)
        self._pace = Pace()
        self._interest = Interest()
        self._last: Snapshot | None = None
        self._may_ring = may_ring
        self._rang_at = float("-inf")
        self._watcher = Watcher(team.path, self._read, pace=lambda: self._pace.delay(time.monotonic()))

    def first(self) -> Snapshot:
        """What stands there now, read before the thread begins, so that the first picture is a true one.

        Whether file events arrive is not known before the thread has tried: no warning is shown until then.
        """
        self._last = replace(self._snapshot(), hinted=True)
        return self._last

    def start(self) -> None:
        """Begin to read."""
        self._watcher.start()

    def stop(self) -> None:
        """Read no more."""
        self._watcher.stop()

    def look_at(self, interest: Interest) -> None:
        """Say what the screen shows now; it is read at once."""
        if interest != self._interest:
            self._interest = interest
            self._watcher.poke()

    def poke(self) -> None:
        """Read now: something was changed from here."""
        self._watcher.poke()

    def _read(self) -> None:
        snapshot = self._snapshot()
        if self._last is None or _differs(snapshot, self._last):
            self._last = snapshot
            self._pace.note(time.monotonic())
            self._publish(snapshot)
        self._wake_supervisor(snapshot.view)

    def _snapshot(self) -> Snapshot:
        try:
            view = self._reader.read()
            return replace(self._details.read(view, self._interest), hinted=self._watcher.hinted)
        except (CrewboardError, OSError) as error:
            problem = str(error)
        except Exception as error:
            # Reading goes on at the next change; a thread that died would leave a screen that lies.
            log.exception("reading failed")
            problem = f"an error in crewboard while reading: {type(error).__name__}: {error}"
        return replace(self._last or Snapshot(_nothing(self._team)), problem=problem)

    def _wake_supervisor(self, view: TeamView) -> None:
        """Nobody else may notice that a supervisor was killed: whoever sees it rings."""
        due = time.monotonic() - self._rang_at > RING_EVERY
        if self._may_ring and due and not view.supervisor.alive and self._is_needed(view):
            self._rang_at = time.monotonic()
            threading.Thread(target=self._ring, name="crewboard-ring", daemon=True).start()

    def _is_needed(self, view: TeamView) -> bool:
        return any(
            agent.alive or supervisor_client.is_unfinalized(self._team.agent(agent.name)) for agent in view.agents
        )

    def _ring(self) -> None:
        try:
            supervisor_client.wake_supervisor(self._team)
        except (CrewboardError, OSError) as error:
            log.warning("no supervisor: %s", error)


def _nothing(team: TeamDirectory) -> TeamView:
    """A team of which nothing could be read."""
    return TeamView(
        name=team.path.name, path=team.path, root=team.root, description="", plan_approver=OPERATOR,
        model_backend="api", supervisor=SupervisorView(None, alive=False), agents=(), requests=(), tasks=(), needs=(),
    )  # fmt: skip


def _differs(new: Snapshot, old: Snapshot) -> bool:
    """Whether anything but the time of reading is different."""
    return replace(new, view=replace(new.view, now=0)) != replace(old, view=replace(old.view, now=0))
