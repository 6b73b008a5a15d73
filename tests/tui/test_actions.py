"""An action on a selection, without a screen: whether it can be used, why not, and what the footer calls it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from crewboard.errors import BadDataError
from crewboard.protocol import requests
from crewboard.readmodel.reader import TeamReader
from crewboard.readmodel.team import TeamView
from crewboard.records.base import JsonValue
from crewboard_tui.actions.agents import AgentActions, TaskActions
from crewboard_tui.actions.messaging import Messaging
from crewboard_tui.actions.registry import Action, Selection, select
from crewboard_tui.actions.requests import RequestActions
from crewboard_tui.context import AppContext
from crewboard_tui.keymap.bindings import default_key
from tests.frozen import NOW, Frozen


@pytest.fixture
def view(frozen: Frozen) -> TeamView:
    """The frozen team."""
    return TeamReader(frozen.directory, clock=lambda: NOW, probe=frozen.probe).read()


@pytest.fixture
def actions(view: TeamView) -> dict[str, Action]:
    """The actions on agents and tasks, by id."""
    context = cast("AppContext", SimpleNamespace(view=view, key=default_key))
    groups = (AgentActions(context), Messaging(context), TaskActions(context))
    return {action.id: action for group in groups for action in group.actions}


@pytest.mark.parametrize(
    ("ident", "name", "reason"),
    [
        ("agent.stop", "api", None),
        ("agent.stop", "parser", "parser is not running"),
        ("agent.resume", "parser", None),
        ("agent.resume", "api", "api is still running"),
        ("agent.acknowledge", "parser", None),
        ("agent.answer", "auth-plan", None),
        ("agent.answer", None, "select an agent first"),
        ("agent.message", None, "select an agent first"),
        ("agent.broadcast", None, None),
        ("agent.hire", None, None),
        ("task.cancel", "api", "select a task first"),
    ],
)
def test_an_action_works_on_a_selection_or_says_why_not(
    actions: dict[str, Action], view: TeamView, ident: str, name: str | None, reason: str | None
) -> None:
    assert actions[ident].available(select(view, name)) == reason


def test_a_label_names_the_marked_agents_an_action_fits(actions: dict[str, Action], view: TeamView) -> None:
    marked = ("api", "parser")
    agents = tuple(agent for agent in view.agents if agent.name in marked)
    selection = Selection(targets=marked, agents=agents, marked=marked)
    assert actions["agent.stop"].label(selection) == "stop ✓api"
    assert actions["agent.message"].label(selection) == "msg ✓2"
    assert actions["agent.stop"].label(select(view, "api")) is None


def test_a_task_is_cancelled_while_it_is_open(actions: dict[str, Action], view: TeamView) -> None:
    for task in view.tasks:
        is_open = task.status not in ("completed", "failed", "cancelled")
        assert (actions["task.cancel"].available(Selection(task=task)) is None) == is_open, task.status


@pytest.mark.parametrize(
    "answer",
    [
        lambda page: page.approve(),
        lambda page: page.approve_with_rule("calls like this", "agent"),
        lambda page: page.reject("no"),
    ],
    ids=["approve", "approve with a rule", "reject"],
)
def test_a_page_answers_no_other_version_than_it_shows(
    frozen: Frozen, view: TeamView, answer: Callable[[RequestActions], str]
) -> None:
    call: dict[str, JsonValue] = {"tool": "bash", "input": {"command": "make test"}, "scope": "make test"}
    asked = requests.ask(frozen.directory, "perm-1", "permission", "api", "operator", call, NOW)
    context = cast("AppContext", SimpleNamespace(team=frozen.team, view=view, key=str))
    with pytest.raises(BadDataError, match="another sha256"):
        answer(RequestActions(context, asked.replace(sha256="0" * 64)))
    assert requests.load(frozen.directory, "perm-1") == asked
    assert not frozen.team.config.rules
