"""The keys that are about agents, wherever one is selected: hire, stop, end, pause, resume, acknowledge, answer."""

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
from crewboard_tui.screens.writing import Writing
from crewboard_tui.together import together

AGAIN_WITHIN = 2.0
"""Seconds within which `X` must be pressed a second time."""


class AgentKeys(Writing):
    """A screen on which agents can be selected."""

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("agents")]
    _armed: tuple[frozenset[str], float] = (frozenset(), 0.0)

    def offers(self, action: str) -> bool | None:
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

    def _for_all(self, doing: str, names: list[str], command: Callable[[str], str], done: str) -> None:
        """Do something to several agents at once, and say in one sentence what became of it."""
        if names:
            self.desk.do(f"{doing} {', '.join(names)}", partial(together, names, command, done))

    def action_pause(self) -> None:
        living = [agent for agent in self._views() if agent.alive]
        running = [agent.name for agent in living if not _is_held(agent)]
        if running:
            self._for_all("pausing", running, self._pause, "pause at their next safe point")
        else:
            self._for_all("letting go on", [agent.name for agent in living], self._unpause, "go on")

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
        living = [agent.name for agent in self._views() if agent.alive]
        self._for_all("asking to shut down:", living, self._stop, "have shut down")

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
        self._for_all("ending", sorted(names), self._end, "and everything they started are ended")

    def _end(self, name: str) -> str:
        ending.stop_now(self.desk.team, name)
        return f"{name} and everything it started is ended"

    def action_resume(self) -> None:
        over = [agent.name for agent in self._views() if _is_over(agent)]
        self._for_all("resuming", over, self._resume, "are up again, with their memory")

    def _resume(self, name: str) -> str:
        run = hiring.resume(self.desk.team, name)
        return f"{name} is up again: run {run}, with its memory"

    def action_resume_fresh(self) -> None:
        over = {agent.name: agent for agent in self._views() if _is_over(agent) and agent.spec is not None}

        def start(name: str) -> str:
            return self._start_fresh(over[name])

        self._for_all("starting afresh", list(over), start, "are up again, without memory")

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
    "stop": lambda agent: agent.alive,
    "end": lambda agent: agent.alive,
    "pause": lambda agent: agent.alive,
    "resume": _is_over,
    "resume_fresh": _is_over,
    "acknowledge": _is_unseen_death,
    "answer": lambda agent: bool(agent.asks),
}
"""Which agents an action makes sense for."""
