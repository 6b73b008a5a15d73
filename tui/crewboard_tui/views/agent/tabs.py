"""The tabs of an agent's page, and the data that each shows."""

from collections.abc import Callable
from dataclasses import dataclass

from crewboard.names import LEAD
from crewboard.protocol.addressing import operator_mailboxes
from crewboard.readmodel.file_activity import FileActivity
from crewboard.readmodel.team import AgentView
from crewboard_tui.queries import (
    CallsOf,
    CrashOf,
    Mailbox,
    MailFrom,
    MailTo,
    ProcessOf,
    Query,
    Snapshot,
    TouchedFiles,
    Work,
    WorkOf,
)
from crewboard_tui.render import formats
from crewboard_tui.render.lines import Line
from crewboard_tui.views.agent.cost import cost_lines
from crewboard_tui.views.agent.files import file_folds, file_head
from crewboard_tui.views.agent.mail import mail_folds, mail_head
from crewboard_tui.views.agent.process import process_lines
from crewboard_tui.views.agent.transcript import transcript_folds
from crewboard_tui.views.board.activity import activity_lines
from crewboard_tui.views.inbox.message_list import MailboxInfo
from crewboard_tui.views.needs.explanation import death_lines, fact_lines
from crewboard_tui.views.tasks.rows import task_line
from crewboard_tui.widgets.collapsible_list import CollapsibleRow

_RECENT = 40


@dataclass(frozen=True)
class Page:
    """The input of a tab: the agent, its data, the time, the size, and whether to show a caret in growing text."""

    agent: AgentView
    snapshot: Snapshot
    now: float
    width: int
    caret: bool = True


@dataclass(frozen=True)
class Tab:
    """One tab: lines in the pane `page` or `facts`, or foldable rows in the pane `folds`.

    `follows` means that the tab opens at its end; `nothing` is shown when it is empty, `below` at its lower edge.
    """

    name: str
    queries: Callable[[str], tuple[Query[object], ...]]
    lines: Callable[[Page], list[Line]] | None = None
    folds: Callable[[Page], list[CollapsibleRow]] | None = None
    head: Callable[[int], Line] | None = None
    follows: bool = False
    nothing: str = ""
    below: str = ""

    @property
    def pane(self) -> str:
        """Return the id of the widget that shows the tab."""
        return "folds" if self.folds else "page" if self.follows else "facts"


def _now(page: Page) -> list[Line]:
    agent, snapshot = page.agent, page.snapshot
    report, work = snapshot.get(CrashOf(agent.name)), snapshot.get(WorkOf(agent.name)) or Work()
    if agent.shown == "dead" and report is not None:
        return death_lines(report, page.now, page.width)
    live = work.live if agent.alive else ""
    recent = activity_lines(work.activity[-_RECENT:], live, page.width, caret=page.caret)
    return [*recent, (), *fact_lines(_facts(agent), page.width)]


def _mail(page: Page) -> list[CollapsibleRow]:
    agent, snapshot = page.agent, page.snapshot
    box = MailboxInfo(agent.name, unread=agent.unread)
    mailbox, sent = snapshot.get(MailTo(agent.name)) or Mailbox(), snapshot.get(MailFrom(agent.name)) or ()
    received = [*mailbox.prompts, *mailbox.letters]
    return mail_folds(received, sent, box, operator_mailboxes(snapshot.view.names), page.width, snapshot.view.asked)


def seat_mail(snapshot: Snapshot, width: int) -> list[CollapsibleRow]:
    """Return the mail for the lead while there is no lead."""
    box = MailboxInfo(LEAD, operators=True, unread=snapshot.view.unread.get(LEAD, 0))
    mailbox, sent = snapshot.get(MailTo(LEAD)) or Mailbox(), snapshot.get(MailFrom(LEAD)) or ()
    return mail_folds(mailbox.letters, sent, box, operator_mailboxes(snapshot.view.names), width, snapshot.view.asked)


def _transcript(page: Page) -> list[CollapsibleRow]:
    alive = page.agent.alive
    work = page.snapshot.get(WorkOf(page.agent.name)) or Work()
    live = work.live if alive else ""
    return transcript_folds(work.activity, live, page.now, page.width, alive=alive, caret=page.caret)


def _tasks(page: Page) -> list[Line]:
    view, name = page.snapshot.view, page.agent.name
    mine = [task for task in view.tasks if name in (task.owner, task.last_owner)]
    return [task_line(task, view, page.now, page.width) for task in mine]


def _process(page: Page) -> list[Line]:
    return process_lines(page.agent, page.snapshot, page.now, page.width)


def _files(page: Page) -> list[CollapsibleRow]:
    return file_folds(page.snapshot.get(TouchedFiles()) or FileActivity(), page.agent.name, page.now, page.width)


def _cost(page: Page) -> list[Line]:
    return cost_lines(page.agent, page.snapshot.view, page.snapshot.get(CallsOf(page.agent.name)) or (), page.width)


def _facts(agent: AgentView) -> list[tuple[str, str]]:
    count, tokens = formats.count, agent.tokens
    used = f"in {count(tokens.input)}, out {count(tokens.output)}, cache {count(tokens.cache_read)}"
    context = ""
    if agent.context.limit:
        context = f"{100 * agent.context.used // agent.context.limit}% of {formats.count(agent.context.limit)}"
    return [
        ("role", agent.role),
        ("task", f"#{agent.task}" if agent.task else ""),
        ("model", agent.model),
        ("tokens", used if tokens.input or tokens.output else ""),
        ("context", context),
        ("last error", agent.last_error or ""),
    ]


TABS: tuple[Tab, ...] = (
    Tab("Now", lambda name: (WorkOf(name), CrashOf(name)), _now, follows=True),
    Tab("Mail", lambda name: (MailTo(name), MailFrom(name)), folds=_mail, head=mail_head, follows=True,
        nothing="no mail yet"),
    Tab("Transcript", lambda name: (WorkOf(name),), folds=_transcript, follows=True,
        nothing="nothing in its journal yet"),
    Tab("Tasks", lambda _: (), _tasks, nothing="it owns no task"),
    Tab("Files", lambda _: (TouchedFiles(),), folds=_files, head=file_head,
        nothing="no file changed with file tools", below="changes made by shell commands are not tracked here"),
    Tab("Process", lambda name: (CrashOf(name), ProcessOf(name)), _process),
    Tab("Cost", lambda name: (CallsOf(name),), _cost),
)  # fmt: skip
"""The tabs from left to right."""

NAMES = tuple(tab.name for tab in TABS)
