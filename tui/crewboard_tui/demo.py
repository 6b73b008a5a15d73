"""The demo: a team at work on a scratch copy of a sample project, on the screen or as printed events.

It uses the offline model and is removed on exit.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar

import psutil
from msgspec.structs import replace

from crewboard import (
    LEAD,
    OPERATOR,
    Assignment,
    CrewboardError,
    ExitCode,
    Hire,
    HireOptions,
    Message,
    Request,
    Status,
    Team,
    TeamView,
    env,
    redaction,
)
from crewboard.commands import answers as commands_answers
from crewboard.commands import context, hire, messages, stop
from crewboard.commands.context import POLL_INTERVAL, wait_until
from crewboard.names import SYSTEM, mailboxes
from crewboard.offline import scenario
from crewboard.offline.scenario import Scenario, ScenarioAgent
from crewboard.readmodel.changes import ChangeReader
from crewboard.readmodel.file_activity import FileAccessReader
from crewboard.readmodel.usage import bill_team
from crewboard.records.base import counted
from crewboard.records.events import RunStarted, ToolStart
from crewboard.records.processes import ORDERLY_REASONS
from crewboard.sandbox import level, policy
from crewboard.store import journal, leases, mailbox, tasks
from crewboard.store.layout import TeamDirectory
from crewboard.unix import process, programs
from crewboard_tui.cli import leave
from crewboard_tui.cli.common import note, say
from crewboard_tui.cli.watching import ChangeLines, hints
from crewboard_tui.render.formats import format_tokens

COURIER = "courier"
"""The agent that is killed, to show a crash."""

_CALLS_BEFORE_DEATH = 2
_GONE_WITHIN = 5.0
_IGNORED = (env.PREFIX, env.API_PREFIX)
"""Prefixes of environment variables that the demo ignores."""


@dataclass
class Stage:
    """A team called demo in a scratch copy of the sample project. `leaving` is True once the demo is being removed."""

    team: Team
    scenario: Scenario
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(max_workers=8))
    leaving: bool = False

    @classmethod
    def build(cls, *, pace: str) -> "Stage":
        """Create the scratch copy, the team and its tasks; no agent is hired yet.

        `pace` multiplies each delay of the offline model.
        """
        root = Path(tempfile.mkdtemp(prefix="crewboard-demo-")).resolve()
        try:
            scenario.copy_sample(root)
            demo = scenario.load("demo")
            # No API key, no settings of other teams.
            kept = {
                name: value
                for name, value in os.environ.items()
                if not redaction.is_secret(name) and (not name.startswith(_IGNORED) or name == env.SANDBOX)
            }
            team = replace(
                context.create(root, "demo", demo.description),
                environment={**kept, env.OFFLINE: "1", env.OFFLINE_PACE: pace},
            )
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
        """Start hiring all agents at once, and return the pending hires. Tell the operator if no sandbox works."""
        if words := self.lack_of_sandbox():
            self.tell_operator(f"In this demo {words}. Your own agents would be refused.")
        return [self.pool.submit(self._hire, agent) for agent in self.scenario.agents]

    def _hire(self, agent: ScenarioAgent) -> Assignment:
        # Safe: it works in a scratch copy, and the demo says so.
        flags = HireOptions(plan=agent.plan, unsafe_no_sandbox=True)
        return hire.spawn(self.team, Hire(agent.name, agent.type, agent.prompt, agent.role, flags=flags))

    def lack_of_sandbox(self) -> str | None:
        """Return the reason why no sandbox works for the demo's agents, as a clause; None if one works."""
        found = level.find(policy.Policy(self.root, writes=True), self.team.environment)
        if found.level != "none":
            return None
        why = "; ".join(found.reasons)
        return f"no sandbox works here ({why}): agents run commands with your rights, in this scratch copy"

    def courier_at_work(self) -> Status | None:
        """Return the courier's status if it is working and has called a few tools; else None."""
        agent = self.team.directory.agent(COURIER)
        calls = sum(isinstance(event, ToolStart) for event, _ in journal.read(agent.journal))
        status = agent.status.load()
        return status if status and status.state == "working" and calls >= _CALLS_BEFORE_DEATH else None

    def kill_courier(self, status: Status) -> None:
        """Kill the courier as the kernel does when memory runs out, and tell the operator that the demo did it."""
        process.send_signal(status.pid, signal.SIGKILL, status.start_ticks)
        told = f"The demo killed {COURIER} (pid {status.pid}) with SIGKILL, to show a crash."
        self.tell_operator(f"{told} Resume it: it remembers its work.")

    def tell_operator(self, text: str) -> None:
        """Send the operator a message from the demo."""
        messages.post(replace(self.team, by=SYSTEM), OPERATOR, "message", text)

    def clear(self) -> list[str]:
        """End all agents and remove the scratch directory; return what is left of them, as phrases."""
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
        """Describe the processes of the demo's team that still run, and its locks that are still held."""
        directory = self.team.directory
        locks = [directory.supervisor_lock, directory.model_lock]
        locks += [directory.agent(name).lease for name in directory.agent_names()]
        held = [f"{lock} is held" for lock in locks if leases.is_held(lock)]
        marks = str(self.root)
        running = [
            f"process {found.info['pid']} runs"
            for found in psutil.process_iter(["pid", "cmdline", "cwd"])
            if found.info["pid"] != os.getpid()
            and any(marks in part for part in (*(found.info["cmdline"] or []), found.info["cwd"] or ""))
        ]
        return held + running


HEADLESS_PACE = "0.05"
"""The factor for the delays of the offline model in the headless demo; in the interactive one it is 1."""

_AT_WORK_TIMEOUT = 60.0
"""Seconds to wait for the courier to be at work before killing it."""


def run(*, headless: bool, ascii: bool = False, theme: str | None = None) -> int:  # noqa: A002
    """Run the demo, remove everything and return the exit code.

    The headless demo prints the events, answers as the operator, and ends by itself.
    """
    signal.signal(signal.SIGHUP, leave)
    stage: Stage | None = None
    try:
        stage = Stage.build(pace=HEADLESS_PACE if headless else "1")
        if headless:
            code = play(stage)
        else:
            # The dashboard opens at once, and is filled in the background.
            threading.Thread(target=_fill, args=(stage,), name="crewboard-demo", daemon=True).start()
            from crewboard_tui import dashboard

            on_leave = "The demo is over: its agents end now, and its scratch copy is removed."
            code = dashboard.run(stage.team, ascii=ascii, theme=theme, on_leave=on_leave, coach=coach)
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        left = stage.clear() if stage is not None else []
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if left:
        note(f"crewboard: the demo could not remove: {'; '.join(left)}")
        return code or ExitCode.FAILED
    return code


def _fill(stage: Stage) -> None:
    """Hire all agents, then kill the courier when it is at work."""
    try:
        for hired in stage.hire_all():
            hired.result()
        deadline = time.monotonic() + _AT_WORK_TIMEOUT
        while not stage.leaving and time.monotonic() < deadline:
            if status := stage.courier_at_work():
                stage.kill_courier(status)
                return
            time.sleep(POLL_INTERVAL)
    except CrewboardError as error:
        if not stage.leaving:
            stage.tell_operator(f"The demo failed: {error}")


def coach(view: TeamView, shown: str | None, key: Callable[[str], str]) -> list[str]:
    """Return lines that say what to try next in the demo, with its keys, and at its end what the team did.

    `shown` is the key of the need on the screen, `key` returns how the key with an id is pressed.
    """
    opens, needs = key("app.next"), {need.kind: need for need in reversed(view.needs)}
    steps = [
        (
            needs.get("death"),
            "1/6 We killed {name} on purpose. {opens} shows why",
            f"2/6 {key('agent.resume')} gives {{name}} its memory back",
        ),
        (
            needs.get("plan"),
            "3/6 {name} waits for a yes. {opens} opens its plan",
            f"4/6 Space reads on, {key('request.approve')} approves exactly this",
        ),
        (
            needs.get("question"),
            "5/6 {name} asks you something. {opens} opens it",
            f"5/6 {key('list.open')} answers with the marked choice",
        ),
    ]
    # What is on the screen is done before what comes first.
    at_hand = [(need, here) for need, _, here in steps if need is not None and need.key == shown]
    for need, tip in [*at_hand, *((need, leads) for need, leads, _ in steps)]:
        if need is not None:
            return [tip.format(name=need.agent, opens=opens)]
    # An agent that was just told something begins in a moment.
    rests = all(agent.shown in _AT_REST and not (agent.alive and agent.unread) for agent in view.agents)
    if not rests or all(task.status not in tasks.CLOSED for task in view.tasks):
        looks = f"{key('list.open')} opens an agent, {key('app.feed')} shows each step, {key('app.cost')} the tokens"
        return [f"The team is at work: {looks}"]
    return _summarise(view, key)


_AT_REST = ("idle", "done")


def _summarise(view: TeamView, key: Callable[[str], str]) -> list[str]:
    """Return lines that say what the team did, and what to do now."""
    states = tuple((agent.name, agent.status.since) for agent in view.agents)
    sent, deaths, files, added, removed = _count_work(view.path, states)
    done = sum(task.status == "completed" for task in view.tasks)
    survived = f", {counted(deaths, 'death')} survived" if deaths else ""
    plans = [asked for asked in view.asked if asked.type == "plan_approval" and asked.status == "approved"]
    answers = sum(asked.type == "question" and asked.status == "answered" for asked in view.asked)
    edited = any(asked.edited is not None for asked in plans)
    team = [
        f"{done} of {counted(len(view.tasks), 'task')} done",
        counted(len(view.agents), "agent") + survived,
        counted(sent, "message"),
        f"{format_tokens(bill_team(view).tokens)} tokens",
    ]
    you = [
        f"{counted(len(plans), 'plan')} approved{' as edited' if edited else ''}",
        f"{counted(answers, 'question')} answered",
        f"{counted(files, 'file')} changed +{added} −{removed}",
    ]
    looks = f"{key('app.inbox')} reads the results, {key('app.feed')} each step, {key('app.cost')} the tokens"
    return [
        "6/6 That is all. What the team did:",
        f"  {' · '.join(team)}",
        f"  {' · '.join(you)}",
        f"{looks}. {key('agent.hire')} hires your own, {key('app.leave')} leaves",
    ]


@lru_cache(maxsize=1)
def _count_work(path: Path, states: tuple[tuple[str, float], ...]) -> tuple[int, int, int, int, int]:
    """Return the numbers of messages, deaths after which an agent went on, changed files, added and removed lines.

    `states` are the agents with the times at which their states began: once one changes, the result is computed anew.
    """
    directory, names = TeamDirectory(path), [name for name, _ in states]
    sent = sum(len(mailbox.read(directory, name).messages) for name in mailboxes(names))
    accesses = [access for name in names for access in FileAccessReader(directory.agent(name)).read() if access.changed]
    removed = sum(access.removed or 0 for access in accesses)
    starts = (event for name in names for event in journal.history(directory.agent(name).journal))
    ends = (event.before for event in starts if isinstance(event, RunStarted) and event.before is not None)
    deaths = sum(end.reason not in ORDERLY_REASONS for end in ends)
    return sent, deaths, len({access.path for access in accesses}), sum(access.added for access in accesses), removed


T = TypeVar("T")

LIMIT = 80.0
"""Time limit of the whole demo, in seconds."""

_STEP = 40.0
_LOOK_EVERY = 0.05
_ANSWER = "Keep it as it is for now; note it for the next release."


class DemoFailedError(Exception):
    """An expected step did not happen; the message names it."""


def play(stage: Stage) -> int:
    """Play the headless demo and return the exit code."""
    started = time.monotonic()
    say(f"demo: a team of {len(stage.scenario.agents)} on a scratch copy of the sample project, {stage.root}")
    say("demo: the offline model answers; it is no language model")
    if words := stage.lack_of_sandbox():
        say(f"demo: {words}")
    try:
        with hints(stage.team.directory) as wake:
            Director(stage, wake).direct()
    except (DemoFailedError, CrewboardError) as error:
        note(f"crewboard: the demo failed: {error}")
        return ExitCode.FAILED
    say(f"demo: finished as expected in {time.monotonic() - started:.0f} s; removing the team")
    return ExitCode.DONE


class Director:
    """Waits for each step of the headless demo in order, and prints changes while it waits."""

    def __init__(self, stage: Stage, wake: threading.Event) -> None:
        self._stage = stage
        self._wake = wake
        self._changes = ChangeReader(stage.team.directory)
        self._lines = ChangeLines()
        self._deadline = time.monotonic() + LIMIT

    def direct(self) -> None:
        """Play all steps of the headless demo.

        Raises:
            DemoFailedError: A step did not happen in time, or not as expected.
        """
        if self._run_tests() == 0:
            raise DemoFailedError("the sample's tests pass before any agent worked on it")
        say("demo: one of the sample's tests fails; that is the team's work")
        self._hire()

        status = self._until(f"{COURIER} is at work", self._stage.courier_at_work)
        self._stage.kill_courier(status)
        say(f"demo: killed {COURIER} (pid {status.pid}) with SIGKILL, to show a crash")
        self._until(f"the crash of {COURIER} is shown with its signal", self._courier_died)

        say(f"demo: resumes {COURIER} (as you)")
        resumed: Future[int] = self._stage.pool.submit(hire.resume, self._stage.team, COURIER)
        self._until(f"{COURIER} is running again", lambda: resumed.done() or None)
        resumed.result()

        plan = self._until("fixer submits a plan", lambda: self._asked("fixer", "plan_approval"))
        say("demo: approves the plan (as you)")
        commands_answers.approve(self._stage.team, plan.id, sha256=plan.sha256)

        question = self._until("reviewer asks a question", lambda: self._asked("reviewer", "question"))
        options = question.payload.get("options")
        text = str(options[0]) if isinstance(options, list) and options else _ANSWER
        say(f"demo: answers the question with {text!r} (as you)")
        commands_answers.answer(self._stage.team, question.id, text)

        say("demo: asks reviewer for a summary (as you)")
        sent = messages.send(self._stage.team, "reviewer", "Please send me a summary of what you found.")
        self._until("reviewer answers with a summary", lambda: self._answered(sent.id))

        for agent in self._stage.scenario.agents:
            self._until(f"{agent.name} sends its result", partial(self._results_of, agent.name))
        self._until(
            "every task is completed",
            lambda: all(task.status == "completed" for task in self._changes.view.tasks) or None,
        )
        if self._run_tests() != 0:
            raise DemoFailedError("the sample's tests still fail")
        say("demo: the sample's tests pass, every task is completed")

    def _hire(self) -> None:
        hired = self._stage.hire_all()
        self._until("all agents are hired", lambda: all(each.done() for each in hired) or None)
        for each in hired:
            each.result()

    def _courier_died(self) -> bool | None:
        agent = self._changes.view.agent(COURIER)
        if agent is None or agent.state != "crashed" or agent.exit is None:
            return None
        return agent.exit.signal == signal.SIGKILL or None

    def _asked(self, name: str, kind: str) -> Request | None:
        return next((r for r in self._changes.view.requests if r.from_ == name and r.type == kind), None)

    def _answered(self, ident: str) -> bool | None:
        answers = (message.metadata.get("answers") for message in self._results_of("reviewer"))
        return any(isinstance(each, list) and ident in each for each in answers) or None

    def _results_of(self, name: str) -> list[Message]:
        mails = mailbox.read(self._stage.team.directory, LEAD).messages
        return [message for message in mails if message.type == "result" and message.from_ == name]

    def _run_tests(self) -> int:
        """Run the sample's own tests and return their exit code."""
        command = [sys.executable, "-B", "-m", "unittest", "-q"]
        left = max(1.0, self._deadline - time.monotonic())
        done = subprocess.run(
            command,
            cwd=self._stage.root,
            env=programs.clean_environment(),
            capture_output=True,
            timeout=left,
            check=False,
        )
        return done.returncode

    def _until(self, what: str, look: Callable[[], T | None]) -> T:
        """Wait until `look` returns something true, print changes meanwhile, and return it.

        `what` names the awaited step.

        Raises:
            DemoFailedError: `look` returned nothing in time, or an agent crashed that the demo did not kill.
        """
        deadline = min(time.monotonic() + _STEP, self._deadline)
        while True:
            self._wake.clear()
            say(*self._lines.describe(self._changes.read()))
            if found := look():
                return found
            for agent in self._changes.view.agents:
                if agent.state == "crashed" and (agent.name != COURIER or agent.run > 1):
                    raise DemoFailedError(f"{agent.name} crashed: {agent.reason}")
            if time.monotonic() > deadline:
                raise DemoFailedError(f"this did not happen in time: {what}")
            self._wake.wait(_LOOK_EVERY)
