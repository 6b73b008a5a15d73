"""The numbered views by their modes. Each is loaded when it is first shown, or when nothing else is to do."""

import importlib

from crewboard_tui.views.numbered import Numbered

VIEWS = {
    "board": "BoardScreen",
    "inbox": "InboxScreen",
    "tasks": "TasksScreen",
    "needs": "NeedsScreen",
    "processes": "ProcessesScreen",
    "feed": "FeedScreen",
    "cost": "CostScreen",
}
"""Mode, which is its folder's name too, and the class in its module `screen`."""

_PAGES = ("agent.screen", "help", "hire.screen", "requests.routing", "teams")


def load(mode: str) -> type[Numbered]:
    """The view of a mode."""
    view: type[Numbered] = getattr(importlib.import_module(f"{__package__}.{mode}.screen"), VIEWS[mode])
    return view


def load_all() -> None:
    """Load every view and page, so that the first key that opens one need not wait for it."""
    for module in (*(f"{mode}.screen" for mode in VIEWS), *_PAGES):
        importlib.import_module(f"{__package__}.{module}")
