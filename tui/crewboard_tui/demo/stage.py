"""The demo's scratch directory, team, tasks and agents, and their removal."""

import os
import shutil
import signal
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from crewboard import env, redaction
from crewboard.commands import context, hire, stop
from crewboard.commands.context import Team, wait_until
from crewboard.commands.hire import Assignment, Hire
from crewboard.commands.messages import post
from crewboard.errors import CrewboardError
from crewboard.linux import process
from crewboard.names import OPERATOR, SYSTEM
from crewboard.offline import scenario
from crewboard.offline.scenario import Scenario, ScenarioAgent
from crewboard.records import HireOptions, Status, ToolStart
from crewboard.sandbox import level
from crewboard.sandbox.policy import Policy
from crewboard.store import agents, journal, leases, tasks

COURIER = "courier"
"""The agent that is killed, to show a crash."""

_CALLS_BEFORE_DEATH = 2
_GONE_WITHIN = 5.0
_IGNORED = (env.PREFIX, env.API_PREFIX)
"""Prefixes of environment variables that the demo ignores."""


@dataclass
class Stage:
    """A team called demo in a scratch copy of the sample project."""

    team: Team
    scenario: Scenario
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(max_workers=8))
    leaving: bool = False

    @classmethod
    def build(cls, *, pace: str) -> "Stage":
        """Create the scratch copy, the team and its tasks; no agent is hired yet."""
        root = Path(tempfile.mkdtemp(prefix="crewboard-demo-")).resolve()
        try:
            scenario.copy_sample(root)
            demo = scenario.load("demo")
            team = replace(context.create(root, "demo", demo.description), environment=_environment(pace))
            for task in demo.tasks:
                tasks.add(
                    team.directory,
                    task.subject,
                    team.now(),
                    description=task.description,
                    owner=task.owner,
                    blocked_by=list(task.blocked_by),
                    required_type=task.required_type,
                )
        except BaseException:
            shutil.rmtree(root, ignore_errors=True)
            raise
        return cls(team, demo)

    @property
    def root(self) -> Path:
        """Return the scratch directory."""
        return self.team.directory.root

    def hire_all(self) -> list[Future[Assignment]]:
        """Start hiring all agents at once."""
        if words := self.lack_of_sandbox():
            self.tell_operator(f"In this demo {words}. Your own agents would be refused.")
        return [self.pool.submit(self._hire, agent) for agent in self.scenario.agents]

    def _hire(self, agent: ScenarioAgent) -> Assignment:
        # Safe: it works in a scratch copy, and the demo says so.
        flags = HireOptions(plan=agent.plan, unsafe_no_sandbox=True)
        return hire.spawn(self.team, Hire(agent.name, agent.type, agent.prompt, agent.role, flags=flags))

    def lack_of_sandbox(self) -> str | None:
        """Return a note if no sandbox works for the demo's agents."""
        found = level.find(Policy(self.root, writes=True), self.team.environment)
        if found.level != "none":
            return None
        why = "; ".join(found.reasons)
        return f"no sandbox works here ({why}): agents run commands with your rights, in this scratch copy"

    def courier_at_work(self) -> Status | None:
        """Return the courier's status once it is at work."""
        agent = self.team.directory.agent(COURIER)
        calls = sum(isinstance(event, ToolStart) for event, _ in journal.read(agent.journal))
        status = agents.status(agent)
        return status if status and status.state == "working" and calls >= _CALLS_BEFORE_DEATH else None

    def kill_courier(self, status: Status) -> None:
        """Kill the courier as the kernel would when memory is short, and tell the operator that the demo did it."""
        process.send_signal(status.pid, signal.SIGKILL, status.start_ticks)
        told = f"The demo killed {COURIER} (pid {status.pid}) with SIGKILL, to show a crash."
        self.tell_operator(f"{told} Resume it: it remembers its work.")

    def tell_operator(self, text: str) -> None:
        """Send the operator a message from the demo."""
        post(replace(self.team, by=SYSTEM), OPERATOR, "message", text)

    def clear(self) -> list[str]:
        """End all agents, remove the scratch directory, and describe what could not be removed."""
        self.leaving = True
        self.pool.shutdown(wait=True, cancel_futures=True)
        left = []
        try:
            stop.delete(self.team, now=True)
        except CrewboardError as error:
            left.append(str(error))
        wait_until(lambda: not self._processes(), _GONE_WITHIN)
        left += self._processes()
        shutil.rmtree(self.root, ignore_errors=True)
        return left + ([str(self.root)] if self.root.exists() else [])

    def _processes(self) -> list[str]:
        """Describe the processes of the demo's team that still run."""
        directory = self.team.directory
        locks = [directory.supervisor_lock, directory.model_lock]
        locks += [agent / "lease" for agent in directory.agents.glob("*")]
        held = [f"{path} is held" for path in locks if leases.is_held(path)]
        marks = str(self.root)
        running = [
            f"process {found.info['pid']} runs"
            for found in psutil.process_iter(["pid", "cmdline", "cwd"])
            if found.info["pid"] != os.getpid()
            and any(marks in part for part in (*(found.info["cmdline"] or []), found.info["cwd"] or ""))
        ]
        return held + running


def _environment(pace: str) -> dict[str, str]:
    """Return the environment of the demo's workers: no API key, no settings of other teams."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not redaction.is_secret(name) and (not name.startswith(_IGNORED) or name == env.SANDBOX)
    }
    return {**kept, env.OFFLINE: "1", env.OFFLINE_PACE: pace}
