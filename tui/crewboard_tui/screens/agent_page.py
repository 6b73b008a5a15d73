"""The page of one agent: what it does now, its mail, its transcript, its tasks, its process."""

from collections.abc import Callable, Iterable
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.widget import Widget

from crewboard.names import LEAD
from crewboard.view.fold import AgentView
from crewboard_tui import fmt, keys
from crewboard_tui.desk import Desk
from crewboard_tui.lines import Line, Span, say
from crewboard_tui.reading import Interest, Snapshot
from crewboard_tui.screens.agent_keys import AgentKeys
from crewboard_tui.screens.processes import process_facts
from crewboard_tui.states import LOOKS
from crewboard_tui.widgets.heading import crumbs_line
from crewboard_tui.widgets.letters import Box, letter_lines, talk_lines
from crewboard_tui.widgets.log import Log
from crewboard_tui.widgets.peek import activity_lines
from crewboard_tui.widgets.still import Still
from crewboard_tui.widgets.task_rows import task_line
from crewboard_tui.widgets.titles import title
from crewboard_tui.widgets.why import death_lines, fact_lines

_TABS = ("Now", "Mail", "Transcript", "Tasks", "Process")


class AgentPage(AgentKeys):
    """Everything about one agent, on tabs that `[` and `]` turn."""

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("tabs")]
    AUTO_FOCUS = "#page"

    def __init__(self, desk: Desk, name: str, tab: str = "Now") -> None:
        super().__init__(desk)
        self.agent_name = name
        self.tab = _TABS.index(tab)

    def heading(self, snapshot: Snapshot, width: int) -> Line:
        return crumbs_line([snapshot.view.name, self.agent_name], "[ ] tab", width)

    def body(self) -> Iterable[Widget]:
        yield Still(id="tabs")
        yield Log(id="page", classes="pane")

    def interest(self) -> Interest:
        return Interest(
            agent=self.agent_name, mailbox=self.agent_name, autopsy=self.agent_name, answers=self._talks_with()
        )

    def _talks_with(self) -> str | None:
        """Whose words to the operator stand between its mail: the lead's, with whom one talks here."""
        return LEAD if self.agent_name == LEAD else None

    def selected_agent(self) -> str | None:
        return self.agent_name

    def offers(self, action: str) -> bool | None:
        return True if action in ("next_tab", "previous_tab") else super().offers(action)

    def paint(self, snapshot: Snapshot) -> None:
        page = self.query_one("#page", Log)
        agent = snapshot.view.agent(self.agent_name)
        self.query_one("#tabs", Still).show([self._tabs(agent)])
        if agent is None and self.agent_name == LEAD:
            title(page, LEAD)
            page.show([_nothing("nobody sits in the lead's seat: l writes to the lead, and hires one")])
            return
        if agent is None:
            title(page, self.agent_name)
            page.show([(say(f"{self.agent_name} is no longer on the team", "warning"),)])
            return
        title(page, _head(agent, self.desk.now), f"f follow:{'on' if page.follow else 'off'}")
        painters: tuple[Callable[[AgentView, Snapshot, int], list[Line]], ...] = (
            self._now, self._mail, self._transcript, self._tasks, self._process,
        )  # fmt: skip
        page.show(painters[self.tab](agent, snapshot, page.line_width))

    def _tabs(self, agent: AgentView | None) -> Line:
        counts = {"Mail": agent.unread if agent else 0}
        spans = [Span(" ")]
        for at, name in enumerate(_TABS):
            count = f"·{counts[name]}" if counts.get(name) else ""
            text = f"[{name}]" if at == self.tab else f" {name} "
            spans += [Span(f"{text}{count}", "tab" if at == self.tab else ""), Span(" ")]
        return tuple(spans)

    # ---------------------------------------------------------------------------------------------------- tabs

    def _now(self, agent: AgentView, snapshot: Snapshot, width: int) -> list[Line]:
        if snapshot.interest.agent != agent.name:
            return []
        if agent.shown == "dead" and snapshot.autopsy is not None:
            return death_lines(snapshot.autopsy, self.desk.now, width)
        live = snapshot.live if agent.alive else ""
        caret = not self.desk.reduced_motion
        return [
            *activity_lines(snapshot.activity[-40:], live, width, caret=caret),
            (),
            *fact_lines(_facts(agent), width),
        ]

    def _mail(self, agent: AgentView, snapshot: Snapshot, width: int) -> list[Line]:
        if snapshot.interest.mailbox != agent.name:
            return []
        box = Box(agent.name, unread=agent.unread)
        if snapshot.interest.answers == agent.name:
            lines = talk_lines(snapshot.letters, snapshot.answers, box, width)
        else:
            lines = letter_lines(snapshot.letters, box, width)
        return lines or [_nothing("no mail yet")]

    def _transcript(self, agent: AgentView, snapshot: Snapshot, width: int) -> list[Line]:
        if snapshot.interest.agent != agent.name:
            return []
        live = snapshot.live if agent.alive else ""
        lines = activity_lines(snapshot.activity, live, width, most=0, caret=not self.desk.reduced_motion)
        return lines or [_nothing("nothing in its journal yet")]

    def _tasks(self, agent: AgentView, snapshot: Snapshot, width: int) -> list[Line]:
        mine = [task for task in snapshot.view.tasks if agent.name in (task.owner, task.last_owner)]
        return [task_line(task, snapshot.view, self.desk.now, width) for task in mine] or [
            _nothing("no task is its own")
        ]

    def _process(self, agent: AgentView, snapshot: Snapshot, width: int) -> list[Line]:
        return process_facts(agent, snapshot, self.desk.now, width)

    def action_talk(self) -> None:
        if self.agent_name != LEAD:
            super().action_talk()
            return
        self._turn(_TABS.index("Mail") - self.tab)
        self.talk()

    def action_next_tab(self) -> None:
        self._turn(1)

    def action_previous_tab(self) -> None:
        self._turn(-1)

    def _turn(self, by: int) -> None:
        self.tab = (self.tab + by) % len(_TABS)
        self.query_one("#page", Log).restart()
        self.paint(self.desk.snapshot)

    @on(Log.Scrolled)
    def _followed(self) -> None:
        self.paint(self.desk.snapshot)


def _head(agent: AgentView, now: float) -> str:
    look = LOOKS[agent.shown]
    parts = [agent.name, agent.type, f"run {agent.run}", f"pid {agent.pid}" if agent.alive else "no process"]
    parts += [
        f"{look.glyph} {look.word} {fmt.age(now - agent.since) if agent.since else ''}",
        f"sandbox {agent.sandbox}",
    ]
    return " · ".join(parts)


def _facts(agent: AgentView) -> list[tuple[str, str]]:
    tokens = agent.tokens
    used = f"in {fmt.count(tokens.input)}, out {fmt.count(tokens.output)}, cache {fmt.count(tokens.cache_read)}"
    context = ""
    if agent.context.limit:
        context = f"{100 * agent.context.used // agent.context.limit}% of {fmt.count(agent.context.limit)}"
    return [
        ("role", agent.role),
        ("task", f"#{agent.task}" if agent.task else ""),
        ("model", agent.model),
        ("tokens", used if tokens.input or tokens.output else ""),
        ("context", context),
        ("last error", agent.last_error or ""),
    ]


def _nothing(words: str) -> Line:
    return (Span(words, "dim"),)
