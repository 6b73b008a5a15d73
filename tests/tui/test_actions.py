"""An action on a selection, without a screen: whether it can be used, why not, and what the footer calls it."""

from types import SimpleNamespace
from typing import cast

import pytest

from crewboard.readmodel.reader import TeamReader
from crewboard.readmodel.team import TeamView
from crewboard_tui.actions.agents import AgentActions
from crewboard_tui.actions.messaging import Messaging
from crewboard_tui.actions.registry import Action, Selection, select
from crewboard_tui.actions.tasks import TaskActions
from crewboard_tui.context import AppContext
from tests.frozen import NOW, Frozen


@pytest.fixture
def view(frozen: Frozen) -> TeamView:
    """The frozen team."""
    return TeamReader(frozen.directory, clock=lambda: NOW, probe=frozen.probe).read()


@pytest.fixture
def actions(view: TeamView) -> dict[str, Action]:
    """The actions on agents and tasks, by id."""
    context = cast("AppContext", SimpleNamespace(snapshot=SimpleNamespace(view=view)))
    groups = (AgentActions(context), Messaging(context), TaskActions(context))
    return {action.id: action for group in groups for action in group.actions}


@pytest.mark.parametrize(
    ("ident", "name", "reason"),
    [
        ("agent.stop", "api", None),
        ("agent.stop", "parser", "not for parser now"),
        ("agent.resume", "parser", None),
        ("agent.resume", "api", "not for api now"),
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
