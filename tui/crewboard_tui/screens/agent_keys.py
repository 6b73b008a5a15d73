"""The keys that are about agents, wherever one is selected: hire, write, stop, end, resume, acknowledge, answer."""

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import ClassVar

from textual.binding import BindingType

from crewboard.records import Flags
from crewboard.team import ending, hiring, mail
from crewboard.view.fold import AgentView
from crewboard_tui import keys
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

    def targets(self) -> list[str]:
        """The agents that a key is for: those that are marked, else the selected one."""
        name = self.selected_agent()
        return [name] if name else []

    def _views(self) -> list[AgentView]:
        view = self.desk.snapshot.view
        return [agent for name in self.targets() if (agent := view.agent(name)) is not None]

    def offers(self, action: str) -> bool | None:
        if action == "broadcast":
            return bool(self.desk.snapshot.view.agents)
        if action in _FITS:
            return any(_FITS[action](agent) for agent in self._views())
        return super().offers(action)

    # ------------------------------------------------------------------------------------------- what the keys do

    def action_hire(self) -> None:
        from crewboard_tui.screens.hire import HireScreen

        self.app.push_screen(HireScreen(self.desk))

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

    def _ask_text(self, label: str, draft: str, send: "partial[None]") -> None:
        def done(text: str | None) -> None:
            if text and text.strip():
                self.desk.drafts.pop(draft, None)
                send(text)

        def keep(text: str) -> None:
            self.desk.drafts[draft] = text

        kept = self.desk.drafts.get(draft, "")
        self.app.push_screen(AskLine(label, kept, hint="Enter sends · Esc keeps it for later", left=keep), done)

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


def _is_unseen_death(agent: AgentView) -> bool:
    return agent.state in ("crashed", "vanished") and not agent.acknowledged


_FITS: dict[str, Callable[[AgentView], bool]] = {
    "message": lambda _: True,
    "stop": lambda agent: agent.alive,
    "end": lambda agent: agent.alive,
    "resume": _is_over,
    "resume_fresh": _is_over,
    "acknowledge": _is_unseen_death,
    "answer": lambda agent: bool(agent.asks),
}
"""Which agents an action makes sense for."""
