"""Write to agents: a message, a broadcast, an interrupt, or a text to the lead; in the composer or in a prompt line."""

from collections.abc import Callable, Iterable
from functools import partial

from crewboard import LEAD, CrewboardError
from crewboard.commands import messages
from crewboard.operations import OPERATIONS
from crewboard.records.base import counted
from crewboard_tui.actions.registry import Action, Selection, aimed, for_fitting
from crewboard_tui.background import Then
from crewboard_tui.compose.composer import Composer, ComposeTarget, PromptLine
from crewboard_tui.compose.parser import COMMANDS, Note, Visit, openings, parse_line, split_attachments
from crewboard_tui.context import AppContext
from crewboard_tui.drafts import ALL_AGENTS, TALK, interrupting, to_agents

_INTERRUPT = OPERATIONS["agent.interrupt"]

Unmark = Callable[[Iterable[str]], None]


class Messaging:
    """The actions that write to agents. They are in `actions`.

    `composer` returns the composer of the screen; None if it shows none.
    """

    def __init__(self, context: AppContext, composer: Callable[[], Composer | None] = lambda: None) -> None:
        self._context = context
        self._composer = composer
        self._held = ""
        """A text that was refused because it looks like a slash command; the same text again is sent."""
        self.actions = (
            for_fitting(
                "agent.message",
                lambda selection: self.write_to(list(selection.targets), selection.unmark),
                lambda _: True,
            ),
            Action(
                "agent.broadcast",
                self.broadcast,
                self.why_no_broadcast,
                lambda selection: aimed("write", selection.marked) if selection.marked else None,
            ),
            for_fitting(
                "agent.interrupt",
                self._interrupt,
                _INTERRUPT.fits,
                why_not=lambda who: _INTERRUPT.why_not and _INTERRUPT.why_not(who, context.key),
            ),
            Action("agent.talk", self.talk),
        )

    @property
    def _lead(self) -> str:
        return self._context.view.lead

    @property
    def _names(self) -> list[str]:
        return [agent.name for agent in self._context.view.agents]

    # ------------------------------------------------------------------------------------------- where one writes

    def follow(self, selection: Selection) -> None:
        """Set the selection as the target of the composer, unless the user writes in it."""
        composer = self._composer()
        if composer is not None:
            can_write = selection.targets and not self._context.read_only
            composer.rest(self._message_to(list(selection.targets), selection.unmark) if can_write else None)

    def write(self, target: ComposeTarget, *, line: bool = False) -> None:
        """Open an input for a text: the composer, or a prompt line if there is no composer or `line` is True."""
        composer = self._composer()
        if composer is not None and composer.line is not None and not line:
            composer.begin(target)
            return
        from crewboard_tui.compose.draft_input import Prose

        def done(text: str) -> None:
            if target.is_sent(text):
                self._context.drafts.pop(target.draft, None)
                target.send(text)

        def kept() -> str:
            return self._context.drafts.get(target.draft, "")

        prompt = PromptLine(
            lambda text: target.addressed(text) or target.label, kept,
            hint=target.hint(self._context.key), changed=partial(self._context.drafts.put, target.draft),
            names=target.names, prose=Prose.of(self._context), write_out=target.write_out,
            check=lambda text: target.check(text) if target.is_sent(text) else None,
        )  # fmt: skip
        self._context.navigator.ask(prompt, done)

    # ---------------------------------------------------------------------------------------------------- message

    def write_to(self, names: list[str], unmark: Unmark) -> None:
        """Open an input for a text to these agents. `unmark` is called with their names when it is sent."""
        if names:
            self.write(self._message_to(names, unmark))

    def _message_to(self, names: list[str], unmark: Unmark) -> ComposeTarget:
        if names == [LEAD] and self._lead not in self._names:
            return self.lead_target()
        return ComposeTarget(
            f"to {', '.join(names)}", to_agents(names), partial(self._obey, names, unmark),
            partial(self._why_not, names), self._openings, write_out=self._write_out,
            addressed=partial(self._addressed, names),
        )  # fmt: skip

    def _addressed(self, names: list[str], text: str) -> str | None:
        """Return the label for a text that begins with the name of another agent; None for other texts."""
        try:
            said = parse_line(f"{text} .", names, self._names)
        except CrewboardError:
            return None
        return f"to {', '.join(said.names)}" if isinstance(said, Note) and list(said.names) != names else None

    @property
    def _openings(self) -> list[str]:
        # Imported here, and below, because it loads all types of agents, for which the first picture need not wait.
        from crewboard import skill_files

        return openings(self._names, skill_files.command_names(self._context.team.directory.root))

    def _write_out(self, text: str) -> str | None:
        """Return the text for which a slash command of the project stands; None for every other text.

        Raises:
            UsageError: Its file cannot be used.
        """
        return None if _opens_view(text) else messages.write_out(self._context.team, text)

    def _why_not(self, names: list[str], text: str, *, hires: bool = False) -> str | None:
        """Return why a text cannot be sent; None if it can.

        With `hires`, a text for the lead hires it if there is none.
        """
        try:
            said = parse_line(text, names, self._names)
            if isinstance(said, Note) and not (hires and said.names == (LEAD,)):
                # Now, while the text is still in the line: after a refusal, writing goes on there.
                messages.read_attachments(self._context.team, said.names, split_attachments(said.text)[1])
        except CrewboardError as error:
            return str(error)
        name = None if _opens_view(text) else messages.unknown_command(self._context.team, text)
        held, self._held = self._held, text
        if name is None or held == text:
            self._held = ""
            return None
        from crewboard import skill_files

        known = skill_files.command_names(self._context.team.directory.root)
        there = f"there are {', '.join(f'/{each}' for each in known)}" if known else ".claude/commands has none"
        return f"no command /{name}: {self._context.key('draft.send')} again sends it as text; {there}"

    def _obey(self, names: list[str], unmark: Unmark, text: str) -> None:
        said = parse_line(text, names, self._names)
        if isinstance(said, Visit):
            navigator = self._context.navigator
            navigator.call_later(navigator.open_view, said.view, said.mailbox)
            return
        to, left = list(said.names), list(said.names)
        unmark(to)
        words, attached = split_attachments(said.text)

        def send() -> str:
            messages.send_to_each(left, lambda name: messages.send(self._context.team, name, words, attached))
            asleep = [name for name in to if not messages.is_listening(self._context.team, name)]
            how = "is not running" if self._context.view.attached is not None else "reads it when resumed"
            later = f"; {', '.join(asleep)} {how}" if asleep else ""
            return f"sent to {', '.join(to)}{later}"

        keep = keep_unsent(self._context, lambda: to_agents(left), said.text)
        self._context.do(f"sending to {', '.join(to)}", send, settle=keep)

    # -------------------------------------------------------------------------------------------------- broadcast

    def why_no_broadcast(self, _: Selection) -> str | None:
        """Return the reason why there is no agent to write to; None if there is one."""
        return None if self._names else "no agent is running"

    def broadcast(self, selection: Selection) -> None:
        """Open an input for a text to all agents; if only some are marked, for a message to each of these."""
        names = self._names
        if selection.marked and sorted(selection.marked) != sorted(names):
            self.write_to(list(selection.marked), selection.unmark)
            return

        def send(text: str) -> None:
            left = list(names)
            selection.unmark(names)

            def tell() -> str:
                told = len(messages.broadcast(self._context.team, text, left))
                return f"sent to {counted(told, 'agent')}"

            def kept_as() -> str:
                return ALL_AGENTS if left == names else to_agents(left)

            self._context.do("sending to all", tell, settle=keep_unsent(self._context, kept_as, text))

        self.write(ComposeTarget(f"to all agents ({len(names)})", ALL_AGENTS, send))

    # -------------------------------------------------------------------------------------------------- interrupt

    def _interrupt(self, selection: Selection) -> None:
        names = [agent.name for agent in selection.agents if _INTERRUPT.fits(agent)]
        target = interrupting(names)

        def send(text: str) -> None:
            left, said = list(names), list[str]()
            selection.unmark(names)

            def interrupt() -> str:
                run = partial(_INTERRUPT.run, self._context.team)
                messages.send_to_each(left, lambda name: said.append(run(name, text).says))
                return said[0] if len(names) == 1 else f"{', '.join(names)} {_INTERRUPT.done}"

            keep = keep_unsent(self._context, lambda: interrupting(left), text)
            self._context.do(f"{_INTERRUPT.doing} {', '.join(names)}", interrupt, settle=keep)

        if names:
            self.write(ComposeTarget(target, target, send, nothing="where does it stand?"))

    # --------------------------------------------------------------------------------------------------- the lead

    def talk(self, _: Selection) -> None:
        """Open the lead's mail and an input line for a text to the lead."""
        self._context.navigator.open_agent(self._lead, "Mail")
        # At once, in a line of its own: what is typed meanwhile must not reach the page, where letters are keys.
        self.write(self.lead_target(), line=True)

    def lead_target(self) -> ComposeTarget:
        """Return the target for a text to the lead, which is hired if there is none, and resumed if it has ended."""
        known = "to the lead" if self._lead == LEAD else f"to {self._lead}, the lead"
        label = known if self._lead in self._names else "hire a lead: what should the team do?"
        check = partial(self._why_not, [LEAD], hires=True)
        return ComposeTarget(
            label, TALK, self._obey_for_lead, check, self._openings, write_out=self._write_out,
            addressed=partial(self._addressed, [LEAD]),
        )  # fmt: skip

    def _obey_for_lead(self, text: str) -> None:
        """Run a command that opens a view, or send the text to the addressed agent, by default to the lead."""
        said = parse_line(text, [LEAD], self._names)
        if not isinstance(said, Note) or said.names != (LEAD,):
            self._obey([LEAD], lambda _: None, text)
            return
        words = said.text

        def tell() -> str:
            from crewboard.commands import hire

            told = hire.tell_lead(self._context.team, words)
            return "a lead is hired and reads it" if told.fresh else "sent to the lead"

        self._context.do("telling the lead", tell, settle=keep_unsent(self._context, lambda: TALK, words))


def _opens_view(text: str) -> bool:
    return bool(set(text.split(maxsplit=1)[:1]) & COMMANDS.keys())


def keep_unsent(context: AppContext, draft: Callable[[], str], text: str) -> Then:
    """Return a callback that stores `text` as a draft if sending it failed, before anything that was written since.

    `draft` returns the name of the draft; an empty name stores nothing.
    """

    def settle(worked: bool, says: str) -> None:  # noqa: ARG001, FBT001
        name = "" if worked else draft()
        if name:
            since = context.drafts.get(name, "")
            context.drafts[name] = f"{text}\n{since}" if since else text

    return settle
