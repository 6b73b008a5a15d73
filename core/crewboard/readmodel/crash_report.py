"""How an agent died: what its record, its journal's end and its log's end say, gathered for whoever must decide."""

from collections import deque
from dataclasses import dataclass

from crewboard.readmodel.activity import Activity, describe
from crewboard.readmodel.mail import MailReader
from crewboard.readmodel.team import AgentView, Rest, TeamView
from crewboard.records import RunStarted, Task, ToolResult, ToolStart, describe_call, describe_exit
from crewboard.store import files, journal
from crewboard.store.layout import AgentDirectory, TeamDirectory

_JOURNAL_TAIL = 256 * 1024
_LOG_TAIL = 8 * 1024
_LOG_LINES = 6


@dataclass(frozen=True)
class LastTool:
    """The last tool call of a run; `finished` is false when its outcome is unknown."""

    ts: float
    text: str
    finished: bool


@dataclass(frozen=True)
class CrashReport:
    """What is known of a death. Times are epoch seconds.

    `did_last` is what it did last, oldest first, `rested` in which state it was if it did nothing any more. `freed` are
    the tasks that went back to the board, `unread_from` the authors of mail that it did not read.
    """

    agent: str
    how: str
    at: float
    began: float | None
    run: int
    pid: int | None
    last_tool: LastTool | None
    did_last: tuple[Activity, ...]
    rested: Rest | None
    log_lines: tuple[str, ...]
    freed: tuple[Task, ...]
    unread: int
    unread_from: tuple[str, ...]


def examine(team: TeamDirectory, view: TeamView, agent: AgentView) -> CrashReport:
    """Gather what is known of how `agent` ended."""
    directory = team.agent(agent.name)
    began, last_tool, did_last = _journal_end(directory, agent.run)
    letters = [letter for letter in MailReader(team, agent.name).read() if letter.picked_up_at is None]
    unread = letters[-agent.unread :] if agent.unread else []
    return CrashReport(
        agent=agent.name,
        how=describe_exit(agent.exit) if agent.exit else agent.reason,
        at=agent.exit.at if agent.exit else agent.since,
        began=began,
        run=agent.run,
        pid=agent.pid,
        last_tool=last_tool,
        did_last=did_last,
        rested=agent.rested,
        log_lines=log_end(directory),
        freed=freed_by(view, agent.name),
        unread=agent.unread,
        unread_from=tuple(dict.fromkeys(letter.message.from_ for letter in unread)),
    )


def freed_by(view: TeamView, name: str) -> tuple[Task, ...]:
    """The tasks that `name` left behind and nobody has taken since."""
    return tuple(task for task in view.tasks if task.last_owner == name and task.status == "pending" and not task.owner)


def _journal_end(agent: AgentDirectory, run: int) -> tuple[float | None, LastTool | None, tuple[Activity, ...]]:
    began: float | None = None
    last: LastTool | None = None
    last_id = ""
    deeds: deque[Activity] = deque(maxlen=_LOG_LINES)
    for event, _ in journal.read(agent.journal, journal.tail_offset(agent.journal, _JOURNAL_TAIL)):
        if event is not None and event.run == run:
            deeds.extend(deed for deed in describe(event) if deed.kind != "died")  # of the run before
        if isinstance(event, RunStarted) and event.run == run:
            began, last = event.ts, None
        elif isinstance(event, ToolStart):
            last_id = event.tool_use_id
            last = LastTool(event.ts, describe_call(event.name, event.input), finished=False)
        elif isinstance(event, ToolResult) and last is not None and event.tool_use_id == last_id:
            last = LastTool(last.ts, last.text, finished=True)
    return began, last, tuple(deeds)


def log_end(agent: AgentDirectory) -> tuple[str, ...]:
    """The last lines that a worker wrote to its log."""
    try:
        with open(agent.log, "rb", opener=files.open_existing) as file:
            file.seek(max(0, file.seek(0, 2) - _LOG_TAIL))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(line for line in text.splitlines() if line.strip())[-_LOG_LINES:]
