"""The numbered views by their modes. Each is loaded when it is first shown, or when nothing else is to do."""

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from textual.screen import Screen

from crewboard import AgentView, Request, TeamView
from crewboard.store.layout import TeamDirectory
from crewboard_tui.keymap.bindings import Pressed
from crewboard_tui.views.base import AppContext, BaseScreen

if TYPE_CHECKING:
    from crewboard_tui.views.teams import TeamChoice

VIEWS = {
    "board": ("board", "BoardScreen"),
    "inbox": ("inbox", "InboxScreen"),
    "tasks": ("tasks", "TasksScreen"),
    "needs": ("needs", "NeedsScreen"),
    "processes": ("processes", "ProcessesScreen"),
    "feed": ("feed", "FeedScreen"),
    "cost": ("cost", "CostScreen"),
    "changes": ("changes.screen", "ChangesScreen"),
}
"""The module and the class of each numbered view, by its mode."""

_PAGES = (
    "agent",
    "help",
    "hire",
    "hosts",
    "requests.plan_screen",
    "requests.question_screen",
    "teams",
)


def load(mode: str) -> type[BaseScreen]:
    """Return the class of a numbered view."""
    module, name = VIEWS[mode]
    view: type[BaseScreen] = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    return view


def load_all() -> None:
    """Load every view and page, so that the first key that opens one need not wait for it."""
    for module in (*(module for module, _ in VIEWS.values()), *_PAGES):
        importlib.import_module(f"{__package__}.{module}")


def agent_page(context: AppContext, name: str, tab: str) -> Screen[None]:
    """Return the page of an agent, open on a tab."""
    from crewboard_tui.views.agent import AgentPage

    return AgentPage(context, name, tab)


def foreground_page(context: AppContext, name: str, since: float) -> Screen[None]:
    """Return the page of an agent whose result is awaited since `since` (epoch seconds)."""
    from crewboard_tui.views.agent import AgentPage

    return AgentPage(context, name, since=since)


def absence_page(context: AppContext) -> Screen[None]:
    """Return the list of what happened while the user was away."""
    from crewboard_tui.views.feed import AbsencePage

    return AbsencePage(context)


def rules_page(context: AppContext) -> Screen[None]:
    """Return the list of the permission rules."""
    from crewboard_tui.views.needs import RulesPage

    return RulesPage(context)


def hosts_page(context: AppContext) -> Screen[None]:
    """Return the list of the hosts."""
    from crewboard_tui.views.hosts import HostsPage

    return HostsPage(context)


def hire_screen(
    context: AppContext, hired: Callable[[str], None], like: AgentView | None, host: str = ""
) -> Screen[None]:
    """Return the form that hires, filled as for the agent `like`, or for this host."""
    from crewboard_tui.views.hire import HireScreen

    return HireScreen(context, hired, like, host)


def request_screen(context: AppContext, request: Request) -> Screen[None]:
    """Return the page of a request."""
    from crewboard_tui.views.requests.plan_screen import ReviewScreen
    from crewboard_tui.views.requests.question_screen import QuestionScreen

    return QuestionScreen(context, request) if request.type == "question" else ReviewScreen(context, request)


def help_screen(behind: Screen[Any], pressed: Pressed) -> Screen[None]:
    """Return the help for the keys of the screen `behind`."""
    from crewboard_tui.views.help import HelpScreen

    return HelpScreen(behind, pressed)


def teams_screen(
    teams: list[TeamDirectory],
    here: TeamDirectory,
    look: Callable[[TeamDirectory], TeamView],
    pressed: Pressed,
    *,
    read_only: bool,
    is_empty: bool,
    found: Mapping[str, str],
) -> Screen["TeamChoice | None"]:
    """Return the list of the teams of this root, and of those `found` that can be attached."""
    from crewboard_tui.views.teams import TeamsScreen

    return TeamsScreen(teams, here, look, pressed, read_only=read_only, is_empty=is_empty, found=found)
