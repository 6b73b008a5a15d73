"""The footer: the keys that work now, the most useful first."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from textual.app import App
from textual.keys import format_key
from textual.screen import Screen

from crewboard_tui.keymap import bindings
from crewboard_tui.keymap.bindings import Key
from crewboard_tui.render.lines import Line, Span, flow

SPARE = 72
"""Keys from this rank on never open a second line, which would move the panes."""


def working_keys(screen: Screen[Any]) -> list[tuple[Key, str]]:
    """Return the keys that do something on `screen` now, and how each is pressed."""
    labels: Mapping[str, str] = getattr(screen, "key_labels", {})
    ascii_only = bool(getattr(screen.app, "ascii_only", False))
    show = partial(bindings.show_key, ascii_only=ascii_only)
    names: dict[str, list[str]] = {}
    for name, active in screen.active_bindings.items():
        ident = active.binding.id
        if ident and active.enabled:
            names.setdefault(ident, []).append(active.binding.key_display or _readable(name, ascii_only=ascii_only))
    return [
        (
            replace(key, label=labels.get(key.id, key.label)),
            " ".join(map(show, sorted(names[key.id], key=len))),
        )
        for key in bindings.known(names)
    ]


async def press(app: App[Any], screen: Screen[Any], ident: str) -> None:
    """Run the action of key `ident` on `screen` if it is available, as a click on it does."""
    for active in screen.active_bindings.values():
        if active.binding.id == ident and active.enabled:
            await app.run_action(active.binding.action, active.node)
            return


def _vital(shown: Iterable[Key]) -> set[str]:
    """Return the keys that are never left out: help, and Esc or else `q`."""
    ids = {key.id for key in shown}
    ways_out = [ident for ident in ("view.back", "hire.cancel", "composer.leave", "app.leave") if ident in ids]
    return {"app.help", *ways_out[:1]} & ids


def _readable(name: str, *, ascii_only: bool) -> str:
    """Return the character that a key types if it can be shown, else the key's name."""
    readable = name if "+" in name or name in bindings.NAMES else format_key(name)
    return name if ascii_only and not readable.isascii() else readable


def footer_lines(screen: Screen[Any], width: int, most: int) -> list[Line]:
    """Return the footer in at most `most` lines."""
    shown = [(key, pressed.split()[0]) for key, pressed in working_keys(screen) if key.footer is not None and key.label]
    shown.sort(key=lambda pair: pair[0].footer or 0)
    pieces: list[Line] = [(Span(pressed, "key", key.id), Span(f" {key.label}", "", key.id)) for key, pressed in shown]
    needed = flow(pieces[: sum((key.footer or 0) < SPARE for key, _ in shown)], width, most)
    return _flow_with(_vital(key for key, _ in shown), pieces, width, max(1, len(needed))) if pieces else [()]


def _flow_with(vital: set[str], pieces: list[Line], width: int, most: int) -> list[Line]:
    """Place the pieces that fit; omit others, the last first, before the `vital` ones."""
    while True:
        rows = flow(pieces, width, most)
        fit = {span.key for row in rows for span in row}
        spare = [piece for piece in pieces if piece[0].key not in vital]
        if vital <= fit or not spare:
            return rows
        pieces = [piece for piece in pieces if piece is not spare[-1]]
