"""The footer: the keys that work here and now, the most useful first."""

from typing import Any

from textual.app import App
from textual.keys import format_key
from textual.screen import Screen

from crewboard_tui import keys
from crewboard_tui.keys import Key
from crewboard_tui.lines import Line, Span, flow

SPARE = 72
"""From this rank on a key only takes room that is left: it opens no further line, which would move the panes."""


def working_keys(screen: Screen[Any]) -> list[tuple[Key, str]]:
    """The keys of our table that do something on `screen` now, each with how it is pressed."""
    names: dict[str, list[str]] = {}
    for name, active in screen.active_bindings.items():
        ident = active.binding.id
        if ident and active.enabled:
            names.setdefault(ident, []).append(active.binding.key_display or _readable(name))
    return [(key, " ".join(map(keys.show_key, sorted(names[key.id], key=len)))) for key in keys.known(names)]


async def press(app: App[Any], screen: Screen[Any], ident: str) -> None:
    """Do what the key `ident` does on `screen`, if it works there now: a click on it."""
    for active in screen.active_bindings.values():
        if active.binding.id == ident and active.enabled:
            await app.run_action(active.binding.action, active.node)
            return


def _readable(name: str) -> str:
    """A key by the character it makes, else by its name."""
    return name if "+" in name or name in keys.NAMES else format_key(name)


def footer_lines(screen: Screen[Any], width: int, most: int) -> list[Line]:
    """What the footer shows, in at most `most` lines."""
    shown = [(key, pressed.split()[0]) for key, pressed in working_keys(screen) if key.footer is not None and key.label]
    shown.sort(key=lambda pair: pair[0].footer or 0)
    pieces = [(Span(pressed, "key", key.id), Span(f" {key.label}", "", key.id)) for key, pressed in shown]
    needed = flow(pieces[: sum((key.footer or 0) < SPARE for key, _ in shown)], width, most)
    return flow(pieces, width, max(1, len(needed))) if pieces else [()]
