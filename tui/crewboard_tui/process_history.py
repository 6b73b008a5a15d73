"""The history of agents' processes: recent usage, process tree, log."""

from collections import deque
from dataclasses import dataclass

from crewboard.readmodel.crash_report import log_end
from crewboard.readmodel.processes import Probe, ProcessNode, Usage
from crewboard.readmodel.reader import MEASURE_EVERY
from crewboard.readmodel.team import TeamView
from crewboard.store.layout import TeamDirectory

KEPT = 120
"""Measurements kept per agent: two minutes at one per second."""


@dataclass(frozen=True)
class ProcessHistory:
    """What is known of one agent's process; `history` is oldest first, one entry per second."""

    agent: str
    history: tuple[Usage, ...] = ()
    family: tuple[ProcessNode, ...] = ()
    log_lines: tuple[str, ...] = ()


class ProcessHistoryReader:
    """Keeps the reader's measurements and reads the process tree of the agent that is shown."""

    def __init__(self, team: TeamDirectory, probe: Probe) -> None:
        self._team = team
        self._probe = probe
        self._history: dict[str, deque[Usage]] = {}
        self._noted_at = float("-inf")
        self._seen: tuple[float, ProcessHistory] = (float("-inf"), ProcessHistory(""))

    def note(self, view: TeamView) -> None:
        """Record the present usage of all agents."""
        now = view.now
        if now - self._noted_at < MEASURE_EVERY:
            return
        self._noted_at = now
        self._history = {agent.name: self._history.get(agent.name) or deque(maxlen=KEPT) for agent in view.agents}
        for agent in view.agents:
            if agent.usage is not None:
                self._history[agent.name].append(agent.usage)

    def read(self, view: TeamView, name: str) -> ProcessHistory:
        """Return what is known of one agent's process; read it at most once a second."""
        now = view.now
        at, known = self._seen
        if known.agent != name or now - at >= MEASURE_EVERY:
            known = self._look(view, name)
            self._seen = (now, known)
        return known

    def _look(self, view: TeamView, name: str) -> ProcessHistory:
        agent = view.agent(name)
        lives = agent is not None and agent.alive and agent.pid
        tree = self._probe.process_tree(agent.pid) if agent is not None and lives and agent.pid else ()
        return ProcessHistory(name, tuple(self._history.get(name, ())), tree, log_end(self._team.agent(name)))
