"""Writing to agents: a message, a broadcast, an interrupt, the talk with the lead. In the composer, or in a line."""

from collections.abc import Callable, Iterable
from functools import partial

from crewboard.commands import control, hire, messages
from crewboard.errors import UsageError
from crewboard.names import LEAD
from crewboard.readmodel.team import AgentView
from crewboard_tui.background.jobs import Then
from crewboard_tui.compose import parser
from crewboard_tui.compose.composer import Composer, ComposeTarget
from crewboard_tui.compose.drafts import ALL_AGENTS, TALK, interrupting, to_agents
from crewboard_tui.compose.parser import Visit
from crewboard_tui.compose.prompt_line import PromptLine
from crewboard_tui.keymap.bindings import Key
from crewboard_tui.views.base import Framed
from crewboard_tui.views.unavailable_keys import NOT_NOW

_FOR_EVERYBODY = frozenset({"pause_all", "broadcast"})


class Writing(Framed):
    """A screen on which agents can be selected, and written to."""

    def selected_agent(self) -> str | None:
        """The agent that a key is about."""
        return None

    def select_agent(self, name: str) -> None:
        """Put the cursor on an agent, who may not be here yet."""

    def targets(self) -> list[str]:
        """The agents that a key is for: those that are marked, else the selected one."""
        name = self.selected_agent()
        return [name] if name else []

    def marked(self) -> list[str]:
        """The agents that are marked, as far as they are shown."""
        return []

    def unmark(self, names: Iterable[str]) -> None:
        """Something was done to these: marks of theirs have served, and the others that counted with them."""

    def _views(self) -> list[AgentView]:
        view = self.context.snapshot.view
        return [agent for name in self.targets() if (agent := view.agent(name)) is not None]

    def _selected(self) -> AgentView | None:
        name = self.selected_agent()
        return self.context.snapshot.view.agent(name) if name else None

    def _names(self) -> list[str]:
        return [agent.name for agent in self.context.snapshot.view.agents]

    def offers(self, action: str) -> bool | None:
        if action == "talk":
            return True
        if action == "broadcast":
            return bool(self._names())
        if action == "message":
            return bool(self._views())
        if action == "interrupt":
            return any(agent.alive for agent in self._views())
        return super().offers(action)

    def why_not(self, key: Key) -> str:
        why = super().why_not(key)
        if why != NOT_NOW:
            return why
        if key.action in _FOR_EVERYBODY:
            return "nobody is running"
        if key.scope == "agents":
            names = [agent.name for agent in self._views()]
            return f"not for {', '.join(names)} now" if names else "select an agent first"
        return why

    # ------------------------------------------------------------------------------------------- where one writes

    @property
    def composer(self) -> Composer | None:
        """The line at the bottom, where the screen has one and is wide enough."""
        found = next(iter(self.query(Composer)), None)
        return found if found is not None and found.styles.display != "none" else None

    def paint_composer(self) -> None:
        """Have the composer follow the selection."""
        composer = self.composer
        if composer is not None:
            names = self.targets()
            composer.rest(self._message_to(names) if names and not self.context.read_only else None)

    def write(self, head: ComposeTarget, *, line: bool = False) -> None:
        """Have something written, in the composer if there is one and no `line` of its own is wanted."""
        composer = self.composer
        if composer is not None and not line:
            composer.begin(head)
            return

        def done(text: str | None) -> None:
            if text is not None and head.is_sent(text):
                self.context.drafts.pop(head.draft, None)
                head.send(text)

        def keep(text: str) -> None:
            self.context.drafts[head.draft] = text

        def kept() -> str:
            return self.context.drafts.get(head.draft, "")

        ask = PromptLine(
            head.label, kept, hint=head.hint(self.context.key, "line.leave"), changed=keep,
            names=head.names, prose=True,
            check=lambda text: head.check(text) if head.is_sent(text) else None,
        )  # fmt: skip
        ask.pressed = self.context.key
        self.context.navigator.ask(ask, done)

    def _or_keep(self, draft: Callable[[], str], text: str) -> Then:
        """What was not sent is a draft again, before what has been written since; for nobody (`""`) it is none."""

        def then(worked: bool, says: str) -> None:  # noqa: ARG001, FBT001
            if not worked and draft():
                self.keep_draft(draft(), text)

        return then

    def keep_draft(self, draft: str, text: str) -> None:
        """Put a text back among the drafts; whoever shows drafts is told by the app."""
        since = self.context.drafts.get(draft, "")
        self.context.drafts[draft] = f"{text}\n{since}" if since else text

    # ------------------------------------------------------------------------------------------- what one writes

    def action_message(self) -> None:
        self.write_to(self.targets())

    def write_to(self, names: list[str]) -> None:
        """Have a text written and sent to some agents."""
        if names:
            self.write(self._message_to(names))

    def _message_to(self, names: list[str]) -> ComposeTarget:
        if names == [LEAD] and LEAD not in self._names():
            return self._talk_to_lead()
        return ComposeTarget(
            f"to {', '.join(names)}", to_agents(names), partial(self._obey, names), partial(self._why_not, names),
            parser.openings(self._names()),
        )  # fmt: skip

    def _why_not(self, names: list[str], text: str) -> str | None:
        try:
            parser.read(text, names, self._names())
        except UsageError as error:
            return str(error)
        return None

    def _obey(self, names: list[str], text: str) -> None:
        said = parser.read(text, names, self._names())
        if isinstance(said, Visit):
            navigator = self.context.navigator
            navigator.call_later(navigator.open_view, said.view, said.mailbox)
        else:
            self._send(list(said.names), said.text)

    def _send(self, names: list[str], text: str) -> None:
        left = list(names)
        self.unmark(names)

        def send() -> str:
            messages.send_to_each(left, lambda name: messages.send(self.context.team, name, text))
            asleep = [name for name in names if not messages.is_listening(self.context.team, name)]
            later = f"; {', '.join(asleep)} reads it when resumed" if asleep else ""
            return f"sent to {', '.join(names)}{later}"

        self.context.do(f"sending to {', '.join(names)}", send, settle=self._or_keep(lambda: to_agents(left), text))

    def action_broadcast(self) -> None:
        everybody = self._names()
        names = self.marked() or everybody
        is_all = sorted(names) == sorted(everybody)
        whom, draft = ("everybody", ALL_AGENTS) if is_all else (", ".join(names), to_agents(names))
        self.write(ComposeTarget(f"to {whom} ({len(names)})", draft, partial(self._broadcast, names, draft)))

    def _broadcast(self, names: list[str], kept_as: str, text: str) -> None:
        left = list(names)
        self.unmark(names)

        def send() -> str:
            told = len(messages.broadcast(self.context.team, text, left))
            return f"sent to {told} agent{'' if told == 1 else 's'}"

        def draft() -> str:
            return kept_as if left == names else to_agents(left)

        self.context.do("sending to all", send, settle=self._or_keep(draft, text))

    def action_interrupt(self) -> None:
        names = [agent.name for agent in self._views() if agent.alive]
        whom = interrupting(names)
        if names:
            self.write(ComposeTarget(whom, whom, partial(self._interrupt, names), nothing="where does it stand?"))

    def _interrupt(self, names: list[str], text: str) -> None:
        left = list(names)
        self.unmark(names)

        def interrupt() -> str:
            messages.send_to_each(left, lambda name: control.interrupt(self.context.team, name, text))
            return f"interrupted: {', '.join(names)} reads it now"

        keep = self._or_keep(lambda: interrupting(left), text)
        self.context.do(f"interrupting {', '.join(names)}", interrupt, settle=keep)

    def action_talk(self) -> None:
        self.context.navigator.open_agent(LEAD, "Mail")
        # At once, in a line of its own: what is typed meanwhile must not reach the page, where letters are keys.
        self.write(self._talk_to_lead(), line=True)

    def _talk_to_lead(self) -> ComposeTarget:
        """A line for the lead; who is hired for it if nobody sits in the seat, or resumed."""
        label = "to the lead" if LEAD in self._names() else "hire a lead: what should the team do?"
        return ComposeTarget(label, TALK, self._tell)

    def _tell(self, text: str) -> None:
        def tell() -> str:
            told = hire.tell_lead(self.context.team, text)
            return "a lead is hired and reads it" if told.fresh else "sent to the lead"

        self.context.do("telling the lead", tell, settle=self._or_keep(lambda: TALK, text))
