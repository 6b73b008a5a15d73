"""The keys that are about agents, wherever one is selected: hire, write, stop, end, resume, acknowledge, answer."""

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import ClassVar

from textual.binding import BindingType

from crewboard.names import LEAD
from crewboard.records import Flags
from crewboard.team import ending, hiring, mail, steering
from crewboard.view.fold import AgentView
from crewboard_tui import keys
from crewboard_tui.hire_words import free_name, terms_of
from crewboard_tui.screens.ask_line import AskLine
from crewboard_tui.screens.frame import Framed

AGAIN_WITHIN = 2.0
"""Seconds within which `X` must be pressed a second time."""


class AgentKeys(Framed):
    """A screen on which agents can be selected."""

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("agents")]
    _armed: tuple[frozenset[str], float] = (frozenset(), 0.0)

    def selected_agent(self) -> str | None:
        """The agent that a key is about."""
        return None

    def select_agent(self, name: str) -> None:
        """Put the cursor on an agent, who may not be here yet."""

    def targets(self) -> list[str]:
        """The agents that a key is for: those that are marked, else the selected one."""
        name = self.selected_agent()
        return [name] if name else []

    def _views(self) -> list[AgentView]:
        view = self.desk.snapshot.view
        return [agent for name in self.targets() if (agent := view.agent(name)) is not None]

    def _selected(self) -> AgentView | None:
        name = self.selected_agent()
        return self.desk.snapshot.view.agent(name) if name else None

    def offers(self, action: str) -> bool | None:
        if action == "broadcast":
            return bool(self.desk.snapshot.view.agents)
        if action == "talk":
            return True
        if action == "pause_all":
            return any(agent.alive for agent in self.desk.snapshot.view.agents)
        if action == "clone":
            agent = self._selected()
            return agent is not None and agent.spec is not None and agent.type != LEAD
        if action in _FITS:
            return any(_FITS[action](agent) for agent in self._views())
        return super().offers(action)

    # ------------------------------------------------------------------------------------------- what the keys do

    def action_hire(self) -> None:
        from crewboard_tui.screens.hire import HireScreen

        self.app.push_screen(HireScreen(self.desk, self.select_agent))

    def action_clone(self) -> None:
        from crewboard_tui.screens.hire import HireScreen

        agent = self._selected()
        if agent is not None and agent.spec is not None:
            name = free_name(self.desk.snapshot.view, agent.name)
            self.app.push_screen(HireScreen(self.desk, self.select_agent, name, terms_of(agent.spec)))

    def action_answer(self) -> None:
        from crewboard_tui.screens.opening import open_request

        asks = [request for agent in self._views() for request in agent.asks]
        if asks:
            open_request(self.app, self.desk, asks[0])

    def action_message(self) -> None:
        self.write_to(self.targets())

    def write_to(self, names: list[str]) -> None:
        """Ask for a text and send it to some agents."""
        if names:
            self._ask_text(f"to {', '.join(names)}", " ".join(names), partial(self._send, names))

    def action_broadcast(self) -> None:
        everybody = [agent.name for agent in self.desk.snapshot.view.agents]
        marked = self.targets() if len(self.targets()) > 1 else everybody
        whom = "everybody" if marked == everybody else ", ".join(marked)
        self._ask_text(f"to {whom} ({len(marked)})", "all", partial(self._broadcast, marked))

    def action_talk(self) -> None:
        from crewboard_tui.screens.agent_page import AgentPage

        self.app.push_screen(AgentPage(self.desk, LEAD, "Mail"))
        # At once: what is typed meanwhile must not reach the page, where letters are keys.
        self.talk()

    def talk(self) -> None:
        """Ask for a line for the lead; who is hired for it if nobody sits in the seat, or resumed."""
        lead = self.desk.snapshot.view.agent(LEAD)
        self._ask_text("to the lead" if lead else "hire a lead: what should the team do?", "talk", self._tell)

    def _tell(self, text: str) -> None:
        def tell() -> str:
            told = hiring.tell_lead(self.desk.team, text)
            return "a lead is hired and reads it" if told.fresh else "sent to the lead"

        self.desk.do("telling the lead", tell)

    def _ask_text(self, label: str, draft: str, send: Callable[[str], None], *, nothing: str | None = None) -> None:
        """Ask for a line and send it. An empty one is no answer, unless `nothing` says what it stands for."""

        def done(text: str | None) -> None:
            if text is not None and (text.strip() or nothing is not None):
                self.desk.drafts.pop(draft, None)
                send(text)

        def keep(text: str) -> None:
            self.desk.drafts[draft] = text

        kept = self.desk.drafts.get(draft, "")
        hint = "Enter sends · Esc keeps it for later"
        if nothing is not None:
            hint = f"{hint} · empty: {nothing}"
        self.app.push_screen(AskLine(label, kept, hint=hint, left=keep), done)

    def _send(self, names: list[str], text: str) -> None:
        def send() -> str:
            for name in names:
                mail.send(self.desk.team, name, text)
            asleep = [name for name in names if not mail.is_listening(self.desk.team, name)]
            later = f"; {', '.join(asleep)} reads it when resumed" if asleep else ""
            return f"sent to {', '.join(names)}{later}"

        self.desk.do(f"sending to {', '.join(names)}", send)

    def _broadcast(self, names: list[str], text: str) -> None:
        def send() -> str:
            return f"sent to {len(mail.broadcast(self.desk.team, text, names))} agents"

        self.desk.do("sending to all", send)

    def action_interrupt(self) -> None:
        names = [agent.name for agent in self._views() if agent.alive]
        whom = ", ".join(names)
        if names:
            draft = f"interrupt {whom}"
            self._ask_text(f"interrupt {whom}", draft, partial(self._interrupt, names), nothing="where does it stand?")

    def _interrupt(self, names: list[str], text: str) -> None:
        def interrupt() -> str:
            for name in names:
                steering.interrupt(self.desk.team, name, text)
            return f"interrupted: {', '.join(names)} reads it now"

        self.desk.do(f"interrupting {', '.join(names)}", interrupt)

    def action_pause(self) -> None:
        living = [agent for agent in self._views() if agent.alive]
        held = all(_is_held(agent) for agent in living)
        for agent in living:
            if held:
                self.desk.do(f"letting {agent.name} go on", partial(self._unpause, agent.name))
            elif not _is_held(agent):
                self.desk.do(f"pausing {agent.name}", partial(self._pause, agent.name))

    def _pause(self, name: str) -> str:
        steering.pause(self.desk.team, name)
        return f"{name} pauses at its next safe point; p again lets it go on"

    def _unpause(self, name: str) -> str:
        steering.unpause(self.desk.team, name)
        return f"{name} goes on"

    def action_pause_all(self) -> None:
        living = [agent for agent in self.desk.snapshot.view.agents if agent.alive]
        if all(_is_held(agent) for agent in living):
            self.desk.do("letting everybody go on", self._unpause_all)
        else:
            self.desk.do("pausing everybody", self._pause_all)

    def _pause_all(self) -> str:
        return f"{len(steering.pause_all(self.desk.team))} agents pause at their next safe point; P again lets them go"

    def _unpause_all(self) -> str:
        return f"{len(steering.unpause_all(self.desk.team))} agents go on"

    def action_stop(self) -> None:
        for agent in self._views():
            if agent.alive:
                self.desk.do(f"asking {agent.name} to shut down", partial(self._stop, agent.name))

    def _stop(self, name: str) -> str:
        ending.stop(self.desk.team, name)
        return f"{name} has shut down"

    def action_end(self) -> None:
        names = frozenset(agent.name for agent in self._views() if agent.alive)
        armed, at = self._armed
        if names != armed or monotonic() - at > AGAIN_WITHIN:
            self._armed = (names, monotonic())
            whom = ", ".join(sorted(names))
            self.desk.say(f"X again within 2 s ends {whom} and everything it started; x asks instead", "warning bold")
            return
        self._armed = (frozenset(), 0.0)
        for name in sorted(names):
            self.desk.do(f"ending {name}", partial(self._end, name))

    def _end(self, name: str) -> str:
        ending.stop_now(self.desk.team, name)
        return f"{name} and everything it started is ended"

    def action_resume(self) -> None:
        for agent in self._views():
            if _is_over(agent):
                self.desk.do(f"resuming {agent.name}", partial(self._resume, agent.name))

    def _resume(self, name: str) -> str:
        run = hiring.resume(self.desk.team, name)
        return f"{name} is up again: run {run}, with its memory"

    def action_resume_fresh(self) -> None:
        for agent in self._views():
            if _is_over(agent) and agent.spec is not None:
                self.desk.do(f"starting {agent.name} afresh", partial(self._start_fresh, agent))

    def _start_fresh(self, agent: AgentView) -> str:
        spec = agent.spec
        if spec is None:
            return f"{agent.name} has no usable spec; hire it anew"
        flags = Flags(**{**spec.flags.model_dump(), "task": None})
        hire = hiring.Hire(agent.name, spec.type, spec.prompt, role=spec.role, model=spec.model or None, flags=flags)
        run = hiring.spawn(self.desk.team, hire).run
        return f"{agent.name} is up again: run {run}, without memory"

    def action_acknowledge(self) -> None:
        names = [agent.name for agent in self._views() if _is_unseen_death(agent)]

        def acknowledge() -> str:
            for name in names:
                mail.acknowledge(self.desk.team, name)
            return f"acknowledged: {', '.join(names)}"

        if names:
            self.desk.do("acknowledging", acknowledge)


def _is_over(agent: AgentView) -> bool:
    return not agent.alive and (agent.state != "starting" or "never" in agent.reason)


def _is_held(agent: AgentView) -> bool:
    """Whether it is to be paused, also while its last call is still under way."""
    return agent.spec.want == "paused" if agent.spec is not None else agent.state == "paused"


def _is_unseen_death(agent: AgentView) -> bool:
    return agent.state in ("crashed", "vanished") and not agent.acknowledged


_FITS: dict[str, Callable[[AgentView], bool]] = {
    "message": lambda _: True,
    "stop": lambda agent: agent.alive,
    "end": lambda agent: agent.alive,
    "pause": lambda agent: agent.alive,
    "interrupt": lambda agent: agent.alive,
    "resume": _is_over,
    "resume_fresh": _is_over,
    "acknowledge": _is_unseen_death,
    "answer": lambda agent: bool(agent.asks),
}
"""Which agents an action makes sense for."""
