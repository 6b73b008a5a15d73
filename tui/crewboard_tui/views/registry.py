"""The numbered views by their modes. Each is loaded when it is first shown, or in a thread after the first picture."""

import importlib

from crewboard_tui.views.base import AppContext, BaseScreen

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

_PAGES = ("agent", "help", "hire", "hosts", "requests.plan_screen", "requests.question_screen", "teams")


def load(mode: str) -> type[BaseScreen]:
    """Return the class of a numbered view."""
    module, name = VIEWS[mode]
    view: type[BaseScreen] = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    return view


def open_view(mode: str, context: AppContext) -> BaseScreen:
    """Return a new screen of a numbered view."""
    return load(mode)(context)


def load_all() -> None:
    """Load every view and page, so that the first key that opens one need not wait for it."""
    for module in (*(module for module, _ in VIEWS.values()), *_PAGES):
        importlib.import_module(f"{__package__}.{module}")
