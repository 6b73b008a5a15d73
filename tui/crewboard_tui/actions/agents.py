"""The keys that are about agents, wherever one is selected: hire, stop, end, pause, resume, acknowledge, answer."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from time import monotonic
from typing import ClassVar

from textual.binding import BindingType

from crewboard.commands import control, messages
from crewboard.commands import hire as hiring
from crewboard.commands import stop as ending
from crewboard.names import LEAD
from crewboard.readmodel.team import AgentView
from crewboard.records import HireOptions
from crewboard_tui.actions.messaging import Writing
from crewboard_tui.background.for_each import run_for_each
from crewboard_tui.keymap import bindings
from crewboard_tui.render.lines import clip, one_line

AGAIN_WITHIN = 2.0
"""Seconds within which `X` must be pressed a second time."""


_NAME = 10
"""Cells for the name of a marked agent in the footer."""


class AgentKeys(Writing):
    """A screen on which agents can be selected."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings.bindings("agents")]
    _armed: tuple[frozenset[str], float] = (frozenset(), 0.0)

    def offers(self, action: str) -> bool | None:
        if action == "pause_all":
            return any(agent.alive for agent in self.context.snapshot.view.agents)
        if action == "clone":
            agent = self._selected()
            return agent is not None and agent.spec is not None and agent.type != LEAD
        if action in _FITS:
            return any(_FITS[action](agent) for agent in self._views())
        return super().offers(action)

    @property
    def key_labels(self) -> Mapping[str, str]:
        # Pressed again they undo what they did.
        both = (
            ("agent.pause", "go on", self._views()),
            ("agent.pause_all", "all go on", self.context.snapshot.view.agents),
        )
        labels = {**super().key_labels, **{ident: label for ident, label, agents in both if _are_held(agents)}}
        return {**labels, **self._aimed(labels)} if self.marked() else labels

    def _aimed(self, labels: Mapping[str, str]) -> dict[str, str]:
        """With marks, whom each key is for, in its label: the cursor may stand on another."""
        found = {}
        for key in bindings.KEYS:
            if key.scope == "agents" and key.action in _AT_MARKED:
                fits = _FITS.get(key.action)
                names = [agent.name for agent in self._views() if fits is None or fits(agent)]
                label = "write" if key.action == "broadcast" else labels.get(key.id, key.label)
                found[key.id] = f"{label} {_mark(names)}"
        return found

    # ------------------------------------------------------------------------------------------- what the keys do

    async def action_hire(self) -> None:
        await self.context.navigator.open_hire_form(self.select_agent)

    async def action_clone(self) -> None:
        agent = self._selected()
        if agent is not None and agent.spec is not None:
            await self.context.navigator.open_hire_form(self.select_agent, agent)

    def action_answer(self) -> None:
        asks = [request for agent in self._views() for request in agent.asks]
        if asks:
            self.context.navigator.open_request(asks[0])

    def _for_all(self, doing: str, names: list[str], command: Callable[[str], str], done: str) -> None:
        """Do something to several agents at once, and say in one sentence what became of it."""
        if names:
            self.context.do(f"{doing} {', '.join(names)}", partial(run_for_each, names, command, done))
            self.unmark(names)

    def action_pause(self) -> None:
        living = [agent for agent in self._views() if agent.alive]
        running = [agent.name for agent in living if not _is_held(agent)]
        if running:
            self._for_all("pausing", running, self._pause, "pause at their next safe point")
        else:
            self._for_all("letting go on", [agent.name for agent in living], self._unpause, "go on")

    def _pause(self, name: str) -> str:
        control.pause(self.context.team, name)
        return f"{name} pauses at its next safe point; {self.context.key('agent.pause')} again lets it go on"

    def _unpause(self, name: str) -> str:
        control.unpause(self.context.team, name)
        return f"{name} goes on"

    def action_pause_all(self) -> None:
        if _are_held(self.context.snapshot.view.agents):
            self.context.do("letting everybody go on", self._unpause_all)
        else:
            self.context.do("pausing everybody", self._pause_all)

    def _pause_all(self) -> str:
        held, again = len(control.pause_all(self.context.team)), self.context.key("agent.pause_all")
        return f"{held} agents pause at their next safe point; {again} again lets them go"

    def _unpause_all(self) -> str:
        return f"{len(control.unpause_all(self.context.team))} agents go on"

    def action_stop(self) -> None:
        living = [agent.name for agent in self._views() if agent.alive]
        self._for_all("asking to shut down:", living, self._stop, "have shut down")

    def _stop(self, name: str) -> str:
        ending.stop(self.context.team, name)
        return f"{name} has shut down"

    def action_end(self) -> None:
        names = frozenset(agent.name for agent in self._views() if agent.alive)
        armed, at = self._armed
        if names != armed or monotonic() - at > AGAIN_WITHIN:
            self._armed = (names, monotonic())
            whom = ", ".join(sorted(names))
            end, stop = self.context.key("agent.end"), self.context.key("agent.stop")
            words = (
                f"{end} again within {AGAIN_WITHIN:.0f} s ends {whom} and everything it started; {stop} asks instead"
            )
            self.context.say(words, "warning bold", AGAIN_WITHIN)
            return
        self._armed = (frozenset(), 0.0)
        self._for_all("ending", sorted(names), self._end, "and everything they started are ended")

    def _end(self, name: str) -> str:
        ending.stop_now(self.context.team, name)
        return f"{name} and everything it started is ended"

    def action_resume(self) -> None:
        over = [agent.name for agent in self._views() if _is_over(agent)]
        self._for_all("resuming", over, self._resume, "are up again, with their memory")

    def _resume(self, name: str) -> str:
        run = hiring.resume(self.context.team, name)
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
        flags = HireOptions(**{**spec.flags.model_dump(), "task": None})
        hire = hiring.Hire(agent.name, spec.type, spec.prompt, role=spec.role, model=spec.model or None, flags=flags)
        run = hiring.spawn(self.context.team, hire).run
        return f"{agent.name} is up again: run {run}, without memory"

    def action_acknowledge(self) -> None:
        names = [agent.name for agent in self._views() if _is_unseen_death(agent)]

        def acknowledge() -> str:
            for name in names:
                messages.acknowledge(self.context.team, name)
            return f"acknowledged: {', '.join(names)}"

        if names:
            self.context.do("acknowledging", acknowledge)
            self.unmark(names)


def _mark(names: list[str]) -> str:
    return f"✓{clip(one_line(names[0]), _NAME)}" if len(names) == 1 else f"✓{len(names)}"


def _is_over(agent: AgentView) -> bool:
    return not agent.alive and (agent.state != "starting" or agent.failed_start)


def _is_held(agent: AgentView) -> bool:
    """Whether it is to be paused, also while its last call is still under way."""
    return agent.spec.want == "paused" if agent.spec is not None else agent.state == "paused"


def _are_held(agents: Iterable[AgentView]) -> bool:
    """Whether all of them who live are to be paused, and somebody does."""
    living = [agent for agent in agents if agent.alive]
    return bool(living) and all(_is_held(agent) for agent in living)


def _is_unseen_death(agent: AgentView) -> bool:
    return agent.is_dead and not agent.acknowledged


_FITS: dict[str, Callable[[AgentView], bool]] = {
    "stop": lambda agent: agent.alive,
    "end": lambda agent: agent.alive,
    "pause": lambda agent: agent.alive,
    "resume": _is_over,
    "resume_fresh": _is_over,
    "acknowledge": _is_unseen_death,
    "answer": lambda agent: bool(agent.asks),
    "interrupt": lambda agent: agent.alive,
}
"""Which agents an action makes sense for."""

_AT_MARKED = frozenset({*_FITS, "message", "broadcast"})
"""What is done to the marked."""
