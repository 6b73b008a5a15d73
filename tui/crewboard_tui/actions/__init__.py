"""Actions that keys start on the selection of a view: for agents, tasks, messages and requests, and the search.

A view offers groups of actions. An action is handed the selection and asks the app to open a view by its name.
"""

from typing import TYPE_CHECKING

from crewboard.lazy import lazy

if TYPE_CHECKING:
    from crewboard_tui.actions.agents import AgentActions, MarkedPermissions, NeedActions, Part, PuttingBack
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
else:
    __getattr__ = lazy(
        __name__,
        {
            "agents": "AgentActions MarkedPermissions NeedActions Part PuttingBack",
            "messaging": "Messaging",
            "registry": "Action Layer NOT_NOW Selection marks_layer select select_in select_needs unavailable",
            "requests": "RequestActions newest_of outcome_of revision_of",
            "search": "AGENT_GROUPS ALL FINDS_AGENTS FINDS_TASKS MAIL_GROUPS NEED_GROUPS Search TASK_GROUPS in_group "
            "mail_in_group matches_agent matches_task need_in_group task_in_group",
            "tasks": "TaskActions",
        },
    )

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
    "Part",
    "PuttingBack",
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
