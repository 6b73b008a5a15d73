"""The gate with the real Claude Code, without a network: `make claude` installs it.

Each test starts a session in a terminal, whose model is a script.
"""

import re
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pexpect
import pytest

from crewboard.attach import delivery, install, teams
from crewboard.attach.mirror import MirrorThread
from crewboard.commands import answers, messages
from crewboard.commands.context import Team
from crewboard.offline.reply import Reply
from crewboard.protocol import requests
from crewboard.readmodel.mail import MailReader
from crewboard.records.requests import Request
from crewboard.store.layout import TeamDirectory
from tests.attach.claude import VERSIONS, RefusingProxy, ScriptedApi, program, session, text_of
from tests.crew import eventually
from tests.model import says
from tests.system import need, need_program

pytestmark = pytest.mark.claude

Messages = list[dict[str, Any]]

TIMEOUT = 90.0
"""Seconds to wait for a step of a session, on a busy machine."""

PLANS = ("# Plan\n1. write b.txt\n", "# Plan\n1. write b.txt\n2. add tests\n")


def calls(tool: str, /, **given: Any) -> Reply:
    return Reply([{"type": "tool_use", "name": tool, "input": given}])


def turn_of(said: Messages) -> int:
    return sum(each["role"] == "assistant" for each in said)


@dataclass
class World:
    """A project with the hooks, its attached team, and a session of Claude Code that is about to start there."""

    folder: Path
    version: str
    session_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    proxy: RefusingProxy = field(default_factory=RefusingProxy)
    mirror: MirrorThread | None = None
    is_attached: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.project.mkdir()
        install.install(self.project)

    def attach(self) -> None:
        """Attach to the session's team once its teammate has joined, and mirror it from then on."""
        found = eventually(self.team_of_two, "a teammate", TIMEOUT)
        self.mirror = MirrorThread(teams.attach(self.project, found, 1.0))
        self.mirror.refresh()
        self.mirror.start()
        self.is_attached.set()

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def project(self) -> Path:
        return self.folder / "project"

    @property
    def team(self) -> TeamDirectory:
        assert self.mirror is not None
        return self.mirror.mirror.team

    @property
    def wrote(self) -> bool:
        return (self.project / "b.txt").exists()

    def team_of_two(self) -> teams.FoundTeam | None:
        """Return the team whose lead has a teammate."""
        found = teams.find_teams(self.home / ".claude")
        return next((each for each in found if len(each.roster.members) > 1), None)

    def pending(self, kind: str) -> Request:
        """Wait for the pending request of a type."""

        def look() -> Request | None:
            return next(
                (each for each in requests.pending(self.team) if each.type == kind and not each.answered_in), None
            )

        return eventually(look, f"a {kind} request", TIMEOUT)

    def heard(self, api: ScriptedApi) -> str:
        """Return all that models were told so far."""
        return "\n".join(text_of(each["content"]) for body in api.requests for each in body["messages"])

    def lead(self, said: Messages) -> Reply:
        """Hire the teammate, in the oldest version for a team that is made first; then wait."""
        is_oldest = self.version == VERSIONS[0]
        steps = [calls("TeamCreate", team_name="paint", description="Painters")] if is_oldest else []
        steps.append(
            calls(
                "Agent", description="alpha work", prompt="#script:alpha# Plan, then write b.txt.",
                subagent_type="general-purpose", name="alpha", mode="plan", **({"team_name": "paint"} if steps else {}),
            )
        )  # fmt: skip
        at = turn_of(said)
        return steps[at] if at < len(steps) else says("done")

    def alpha(self, said: Messages) -> Reply:
        """Submit a plan, then a revision of it; when that is approved, write."""
        text = "\n".join(text_of(each["content"]) for each in said)
        plan_files = re.findall(r"(/\S+/plans/\S+?\.md)", text) or ["/missing.md"]
        steps = [
            calls("ToolSearch", query="select:ExitPlanMode,SendMessage", max_results=9),
            calls("Write", file_path=plan_files[0], content=PLANS[0]),
            calls("ExitPlanMode"),
            calls("Write", file_path=plan_files[0], content=PLANS[1]),
            calls("ExitPlanMode"),
            says("planned"),
            calls("Write", file_path=str(self.project / "b.txt"), content="made by alpha\n"),
        ]
        at = turn_of(said)
        # Nothing holds a plan before the team is attached.
        assert self.is_attached.wait(TIMEOUT)
        return steps[at] if at < len(steps) else says("wrote")


@pytest.fixture(params=VERSIONS)
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    installed = program(request.param).exists()
    need(f"Claude Code {request.param}", None if installed else "`make claude` installs it")
    made = World(tmp_path, request.param)
    yield made
    if made.mirror is not None:
        made.mirror.stop()
    made.proxy.close()
    assert made.proxy.asked == [], "it wanted to reach others than its API"


def type_prompt(world: World, terminal: "pexpect.spawn[str]", text: str) -> None:
    """Type a prompt when the session is ready for one."""

    def is_idle() -> bool:
        return any(each.status == "idle" for each in teams.read_sessions(world.home / ".claude" / "sessions"))

    eventually(is_idle, "a session that waits for a prompt", TIMEOUT)
    terminal.send(text)
    first = text.split(maxsplit=1)[0]
    eventually(lambda: first in (world.home / "terminal.txt").read_text(), "the prompt on the screen", TIMEOUT)
    terminal.send("\r")


@pytest.mark.timeout(600)
def test_a_plan_is_held_rejected_revised_and_approved(world: World) -> None:
    with (
        ScriptedApi({"lead": world.lead, "alpha": world.alpha}) as api,
        session(
            world.version, world.home, world.project, api, world.proxy,
            "--permission-mode", "plan", "--session-id", world.session_id,
        ) as terminal,
    ):  # fmt: skip
        type_prompt(world, terminal, "#script:lead# build")
        world.attach()
        team = Team(world.team)
        first = world.pending("plan_approval")
        assert (first.from_, first.payload["plan"]) == ("alpha", PLANS[0])
        answers.reject(team, first.id, "add tests, please")

        second = world.pending("plan_approval")
        assert (second.supersedes, second.payload["plan"]) == (first.id, PLANS[1])
        assert "add tests, please" in world.heard(api)
        assert not world.wrote
        answers.approve(team, second.id)
        eventually(lambda: "is approved by operator" in world.heard(api), "the answer in the conversation", TIMEOUT)
        if world.version == VERSIONS[0]:
            # There, the lead's model decides about an allowed plan once more.
            return

        permission = world.pending("permission")
        assert (permission.from_, permission.payload["tool"]) == ("alpha", "Write")
        assert not world.wrote
        answers.approve(team, permission.id)
        eventually(lambda: world.wrote, "the file", TIMEOUT)


def listen(said: Messages) -> Reply:
    """Answer whatever comes."""
    return says(f"heard {turn_of(said)}")


@pytest.mark.timeout(600)
def test_letters_reach_a_teammate_and_the_lead(world: World) -> None:
    with (
        ScriptedApi({"lead": world.lead, "alpha": listen}) as api,
        session(world.version, world.home, world.project, api, world.proxy) as terminal,
    ):
        type_prompt(world, terminal, "#script:lead# build")
        eventually(world.team_of_two, "a teammate", TIMEOUT)
        # Claude Code empties the inbox of a teammate that has just started.
        eventually(lambda: 'teammate_id="alpha"' in world.heard(api), "a teammate that has nothing to do", TIMEOUT)
        directory = teams.attach(world.project, eventually(world.team_of_two, "the same team", TIMEOUT), 1.0)
        delivery.allow(directory, letters=True)
        thread = MirrorThread(directory)
        thread.refresh()
        thread.start()
        try:
            team = Team(directory)
            messages.send(team, "alpha", "MARK1, please look at b.txt")
            eventually(lambda: "MARK1" in world.heard(api), "the letter in the teammate's conversation", TIMEOUT)
            assert 'teammate_id="operator"' in world.heard(api)

            def is_entered() -> bool:
                found = [each for each in MailReader(directory, "alpha").read() if "MARK1" in each.message.content]
                return bool(found) and None not in (found[0].picked_up_at, found[0].entered_turn_at)

            eventually(is_entered, "the three times of the letter", TIMEOUT)
            messages.send(team, "lead", "MARK2, how is it going?")
            eventually(lambda: "MARK2" in world.heard(api), "the letter in the lead's conversation", TIMEOUT)
        finally:
            thread.stop()


@pytest.mark.timeout(600)
def test_a_plan_of_a_teammate_in_a_pane_is_held(world: World) -> None:
    need_program("tmux")
    name = f"crewboard-{world.session_id[:8]}"
    arguments = ("--permission-mode", "plan", "--session-id", world.session_id, "--teammate-mode", "tmux")
    with (
        ScriptedApi({"lead": world.lead, "alpha": world.alpha}) as api,
        session(world.version, world.home, world.project, api, world.proxy, *arguments, tmux=name) as terminal,
    ):
        type_prompt(world, terminal, "#script:lead# build")
        world.attach()
        plan = world.pending("plan_approval")
        assert (plan.from_, plan.payload["plan"]) == ("alpha", PLANS[0])
        answers.reject(Team(world.team), plan.id, "add tests, please")
        revised = world.pending("plan_approval")
        assert revised.supersedes == plan.id
        answers.approve(Team(world.team), revised.id)
        eventually(lambda: "is approved by operator" in world.heard(api), "the answer in the conversation", TIMEOUT)
        assert not world.wrote
