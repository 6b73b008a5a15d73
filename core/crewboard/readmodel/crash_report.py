"""The report of a death, made from the exit record, the journal, the log and the mailbox of the agent."""

from collections import deque

from msgspec import Struct

from crewboard.protocol import requests
from crewboard.readmodel.activity import Activity, describe
from crewboard.readmodel.mail import MailReader
from crewboard.readmodel.team import AgentView, Rest, TeamView
from crewboard.records.events import RunStarted, ToolResult, ToolStart, describe_call
from crewboard.records.processes import describe_exit
from crewboard.records.team import Task
from crewboard.store import files, journal
from crewboard.store.layout import AgentDirectory, TeamDirectory
from crewboard.unix import process

_JOURNAL_TAIL = 256 * 1024
_LOG_TAIL = 8 * 1024
_LOG_LINES = 6


class LastTool(Struct, frozen=True):
    """The last tool call of a run, in one line; `finished` is False if it has no result."""

    ts: float
    text: str
    finished: bool


class CrashReport(Struct, frozen=True):
    """The evidence of the end of a run. Times are epoch seconds.

    - `how`: the end in words. `at`: when it was. `began`: when the run began; None if that is not known.
    - `last_error`: the last error of the run, empty without one. `last_tool`: None if it called no tool.
    - `last_activity`: the agent's last lines of activity, oldest first. `log_lines`: the last lines of its log.
    - `rested`: its last idle state; None if it was at work.
    - `freed`: the tasks that returned to the board. `unread_from`: the authors of its unread mail.
    """

    agent: str
    how: str
    at: float
    began: float | None
    run: int
    pid: int | None
    last_error: str
    last_tool: LastTool | None
    last_activity: tuple[Activity, ...]
    rested: Rest | None
    log_lines: tuple[str, ...]
    freed: tuple[Task, ...]
    unread: int
    unread_from: tuple[str, ...]


def examine(team: TeamDirectory, view: TeamView, agent: AgentView) -> CrashReport:
    """Return the evidence of how `agent` ended, from its exit record, journal, log and mailbox."""
    directory = team.agent(agent.name)
    began: float | None = None
    last_tool: LastTool | None = None
    last_id = ""
    last_activity: deque[Activity] = deque(maxlen=_LOG_LINES)
    void = requests.judge_effect(team)
    for event, _ in journal.read(directory.journal, directory.journal.tail_offset(_JOURNAL_TAIL)):
        if event is not None and event.run == agent.run:
            # A run starts with the line that tells how the one before it died.
            last_activity.extend(line for line in describe(event, void) if line.kind != "died")
        if isinstance(event, RunStarted) and event.run == agent.run:
            began, last_tool = event.ts, None
        elif isinstance(event, ToolStart):
            last_id = event.tool_use_id
            last_tool = LastTool(event.ts, describe_call(event.name, event.input), finished=False)
        elif isinstance(event, ToolResult) and last_tool is not None and event.tool_use_id == last_id:
            last_tool = LastTool(last_tool.ts, last_tool.text, finished=True)
    letters = [letter for letter in MailReader(team, agent.name).read() if letter.picked_up_at is None]
    unread = letters[-agent.unread :] if agent.unread else []
    return CrashReport(
        agent=agent.name,
        how=describe_exit(agent.exit) if agent.exit else agent.reason,
        at=agent.exit.at if agent.exit else agent.since,
        began=began,
        run=agent.run,
        pid=agent.pid,
        last_error=(agent.status.last_error or "") if agent.status.run == agent.run else "",
        last_tool=last_tool,
        last_activity=tuple(last_activity),
        rested=agent.rested,
        log_lines=log_end(directory),
        freed=view.freed_by(agent.name),
        unread=agent.unread,
        unread_from=tuple(dict.fromkeys(letter.message.from_ for letter in unread)),
    )


def host_of_log(agent: AgentDirectory) -> str | None:
    """Return the name of the host that has the log of an agent's last run; None if it is here, or not known."""
    status = agent.status.load_or_none()
    if status is None or status.boot_id == process.boot_id():
        return None
    return status.host or None


def log_end(agent: AgentDirectory) -> tuple[str, ...]:
    """Return the last lines of a worker's log, or a line that says on which host it is; empty if it cannot be read."""
    if (host := host_of_log(agent)) is not None:
        return (f"worker.log is on the host {host}",)
    try:
        with open(agent.log, "rb", opener=files.open_existing) as file:
            file.seek(max(0, file.seek(0, 2) - _LOG_TAIL))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(line for line in text.splitlines() if line.strip())[-_LOG_LINES:]
