"""Make dashboards in tests cheaper: leave out what Textual does again for each one, and what no test sees.

This saves a third of the time of these tests. Nothing is painted, because there is no terminal: the screen is rendered
when a test asks for it. tests/terminal uses Textual as it is.
"""

import asyncio
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any, ParamSpec, TypeVar

import pytest
from rich.console import RenderableType
from textual._compositor import Compositor
from textual.app import App
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.message import Message
from textual.message_pump import MessagePump
from textual.pilot import Pilot, WaitForScreenTimeout
from textual.widget import Widget

_P = ParamSpec("_P")
_R = TypeVar("_R")

REST_TIMEOUT = 60.0
"""Seconds after which a widget that still has messages counts as stuck, on a busy machine."""

_IDLE_ROUNDS = 4
"""Rounds of the event loop without a message: what a callback of the loop sends comes some rounds later."""

_counts = False
_changes = 0


def changes() -> object:
    """Return a value that stays the same while nothing on a screen can look different; never, if nothing counts it."""
    return _changes if _counts else object()


def lighten(patch: pytest.MonkeyPatch) -> None:
    """Replace parts of Textual by lighter ones that do the same."""
    _parse_once(patch)
    _find_handlers_once(patch)
    _count_changes(patch)
    patch.setattr(Pilot, "_wait_for_screen", _wait_for_rest)
    # The same, in C: it is asked for a thousand times per widget.
    patch.setattr(RuleSet, "__hash__", object.__hash__)


def _parse_once(patch: pytest.MonkeyPatch) -> None:
    """Parse style sheets once, not seven times before each first screen."""
    parse_rules, parse = Stylesheet._parse_rules, Stylesheet.parse
    ruled: dict[Hashable, list[RuleSet]] = {}
    parsed: dict[Hashable, tuple[list[RuleSet], dict[str, list[RuleSet]]]] = {}

    def parse_rules_once(sheet: Stylesheet, *text: Any, **origin: Any) -> list[RuleSet]:
        key = (text, *origin.items(), *sheet._variables.items())
        if key not in ruled:
            ruled[key] = parse_rules(sheet, *text, **origin)
        return ruled[key]

    def parse_once(sheet: Stylesheet) -> None:
        key = (*sheet.source.items(), *sheet._variables.items())
        if key not in parsed:
            parse(sheet)
            parsed[key] = (sheet._rules, sheet.rules_map)
        sheet._rules, sheet._rules_map = parsed[key]
        sheet._require_parse = False

    patch.setattr(Stylesheet, "_parse_rules", parse_rules_once)
    patch.setattr(Stylesheet, "parse", parse_once)


def _find_handlers_once(patch: pytest.MonkeyPatch) -> None:
    """Look up once per class what handles a message, not for each message."""
    find = MessagePump._get_dispatch_methods
    known: dict[tuple[type[MessagePump], str, type[Message]], list[tuple[type, Any]] | None] = {}

    def find_once(pump: MessagePump, name: str, message: Message) -> Iterator[tuple[type, Callable[[Message], Any]]]:
        key = (type(pump), name, type(message))
        if key not in known:
            known[key] = _handlers(*key)
        if (found := known[key]) is None:
            yield from find(pump, name, message)
            return
        for cls, method in found:
            if message._no_default_action:
                break
            yield cls, method.__get__(pump, cls)

    patch.setattr(MessagePump, "_get_dispatch_methods", find_once)


def _handlers(pump: type[MessagePump], name: str, message: type[Message]) -> list[tuple[type, Any]] | None:
    """Return what handles a message, in order; None if that depends on the widget that sent it."""
    found: list[tuple[type, Any]] = []
    for cls in pump.__mro__:
        decorated = cls.__dict__.get("_decorated_handlers") or {}
        for handled in message.__mro__:
            for method, selectors in decorated.get(handled, ()):
                if selectors:
                    return None
                if method not in [each for _, each in found]:
                    found.append((cls, method))
        named = cls.__dict__.get(f"_{name}") or cls.__dict__.get(name)
        if named is not None and not getattr(named, "_textual_on", None):
            found.append((cls, named))
    return found


def _count_changes(patch: pytest.MonkeyPatch) -> None:
    """Count what may change a screen, and paint nothing."""
    render_update = Compositor.render_update

    def paint_nothing(compositor: Compositor, full: bool = False, **more: Any) -> RenderableType | None:
        if full:  # a picture of the screen
            return render_update(compositor, full=True, **more)
        compositor._dirty_regions.clear()
        return None

    def counted(method: Callable[_P, _R]) -> Callable[_P, _R]:
        def call(*arguments: _P.args, **more: _P.kwargs) -> _R:
            global _changes  # noqa: PLW0603
            _changes += 1
            return method(*arguments, **more)

        return call

    patch.setattr(f"{__name__}._counts", True)
    patch.setattr(Compositor, "render_update", counted(paint_nothing))
    patch.setattr(Compositor, "reflow", counted(Compositor.reflow))
    patch.setattr(Compositor, "update_widgets", counted(Compositor.update_widgets))
    patch.setattr(Widget, "_set_dirty", counted(Widget._set_dirty))


async def _wait_for_rest(pilot: Pilot[Any]) -> bool:
    """Wait until no widget on the screen has a message to handle. Textual's own wakes each of them to find out."""
    app: App[Any] = pilot.app
    rounds = idle = 0
    deadline = time.monotonic() + REST_TIMEOUT
    while idle < _IDLE_ROUNDS:
        if app._exception is not None:
            return False
        if time.monotonic() > deadline:
            raise WaitForScreenTimeout("the screen still has messages to handle")
        idle = idle + 1 if _is_idle(app) and all(map(_is_idle, _widgets(app.screen))) else 0
        rounds += 1
        await asyncio.sleep(0 if rounds < 100 else 0.005)
    return True


def _widgets(widget: Widget) -> Iterator[Widget]:
    yield widget
    for child in widget._nodes:
        yield from _widgets(child)


def _is_idle(pump: MessagePump) -> bool:
    """Return True if this part has no message and waits for the next one."""
    queue: Any = pump._message_queue
    return pump._closing or pump._closed or (not queue.values and bool(queue.ready_event._waiters))
