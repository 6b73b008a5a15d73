"""Actions that keys start on the selection of a view: for agents, tasks, messages and requests, and the search.

A view offers groups of actions. An action is handed the selection and asks the app to open a view by its name.
"""

from crewboard_tui.actions.agents import AgentActions, MarkedPermissions, NeedActions
from crewboard_tui.actions.messaging import Messaging
from crewboard_tui.actions.registry import (
    NOT_NOW,
    Action,
    Layer,
    Selection,
    marks_layer,
    select,
    select_in,
    select_needs,
    unavailable,
)
from crewboard_tui.actions.requests import RequestActions, newest_of, outcome_of, revision_of
from crewboard_tui.actions.search import (
    AGENT_GROUPS,
    ALL,
    FINDS_AGENTS,
    FINDS_TASKS,
    MAIL_GROUPS,
    NEED_GROUPS,
    TASK_GROUPS,
    Search,
    in_group,
    mail_in_group,
    matches_agent,
    matches_task,
    need_in_group,
    task_in_group,
)
from crewboard_tui.actions.tasks import TaskActions

__all__ = [
    "AGENT_GROUPS",
    "ALL",
    "FINDS_AGENTS",
    "FINDS_TASKS",
    "MAIL_GROUPS",
    "NEED_GROUPS",
    "NOT_NOW",
    "TASK_GROUPS",
    "Action",
    "AgentActions",
    "Layer",
    "MarkedPermissions",
    "Messaging",
    "NeedActions",
    "RequestActions",
    "Search",
    "Selection",
    "TaskActions",
    "in_group",
    "mail_in_group",
    "marks_layer",
    "matches_agent",
    "matches_task",
    "need_in_group",
    "newest_of",
    "outcome_of",
    "revision_of",
    "select",
    "select_in",
    "select_needs",
    "task_in_group",
    "unavailable",
]
