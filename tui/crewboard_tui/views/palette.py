"""The command palette and the menu of the selection: where to go, what can be done now, and why the rest cannot."""

from collections.abc import Awaitable, Callable, Iterator
from functools import cached_property, partial
from typing import Any, ClassVar

from msgspec import Struct
from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.geometry import Offset
from textual.screen import ModalScreen, Screen

from crewboard.operations import OPERATIONS
from crewboard.records.team import Task
from crewboard.store.layout import TeamDirectory, team_directories
from crewboard.store.tasks import CLOSED
from crewboard_tui.actions.registry import Selection
from crewboard_tui.keymap.bindings import BY_ID, KEYS, WHERE, Key, bindings_of, command_name, palette_commands
from crewboard_tui.render.lines import Line, Span, one_line, pad, say, width_of
from crewboard_tui.render.looks import NEED_LOOKS, look_of
from crewboard_tui.render.themes import names
from crewboard_tui.views.base import CAME_BY_ITSELF, BaseScreen
from crewboard_tui.widgets.bars import VIEWS, press, working_keys
from crewboard_tui.widgets.line_list import LineList, Row
from crewboard_tui.widgets.painter import binding_of

_VIEWS = {f"app.{mode}": name for mode, name in VIEWS.items()} | {
    "app.processes": "Processes", "app.rules": "Permission rules", "app.absence": "While you were away",
    "app.hosts": "Hosts",
}  # fmt: skip
"""The names of views, by the id of the key that shows the view."""

_VIEW_OF = {
    "agents": "board", "wide": "board", "inbox": "inbox", "tasks": "tasks", "changes": "changes", "diff": "changes",
    "accept": "changes",
}  # fmt: skip
"""The view in which the keys of a scope work, for scopes that belong to one."""

_NOT_HERE = frozenset({"app.palette", "list.down", "list.up", "log.down", "log.up"})
_LABEL = 14
_WIDEST = 100
"""The cells of the palette on a wide terminal, as in the stylesheet."""

_BESIDE_NAME = 28
"""The cells of the palette that are not for the name of a place: its kind, and the edges."""

_UNLIKELY = 0.5
_BEGIN_SCORE, _PART_SCORE = 4.0, 1.5
"""The scores of a place whose name begins with the typed words, and of another. The first comes before each command."""


class Palette(CommandPalette):
    """The command palette, with a title as other dialogs have."""

    CSS_PATH = "dialogs.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("palette")]

    def __init__(self, behind: Screen[Any]) -> None:
        self._behind = behind
        super().__init__([Commands], placeholder="Where to go, or what to do", id="--command-palette")

    def on_mount(self) -> None:
        self.query_one("#--input").border_title = " Go or do "
        if isinstance(self._behind, BaseScreen):
            self._behind.paint_keys_of(self)


class _Command(Struct, frozen=True):
    key: Key
    pressed: str
    run: Callable[[], Awaitable[None]]
    why_not: str = ""

    @property
    def title(self) -> Content:
        # A name that is longer is not cut, because it is what is chosen by.
        name = f"{command_name(self.key)}  ".ljust(_LABEL)
        if self.why_not:
            return Content(f"{name}{self.why_not}: {self.key.says}").stylize("dim")
        return Content(f"{name}{self.key.says}  ({self.pressed})")

    def score(self, query: str) -> float:
        """Return how well the words of `query` match; 0 if one of them does not."""
        label, text = self.key.label.lower(), f"{self.key.label} {self.key.says} {self.key.id}".lower()
        words = query.lower().split()
        if not words or not all(word in text for word in words):
            return 0
        if self.why_not:
            return _UNLIKELY
        return 2 if any(label.startswith(word) for word in words) else 1


class _Place(Struct, frozen=True):
    """A place to go to: its name, which is searched, its kind, the name's width, and the function that goes there."""

    name: str
    says: str
    width: int
    run: Callable[[], Awaitable[None]]

    @property
    def title(self) -> Content:
        # Made of what is listed alone: a board may have thousands of tasks.
        return Content.assemble(pad(self.name, self.width), "  ", (self.says, "dim"))

    def score(self, query: str) -> float:
        """Return how well `query` matches; 0 if one of its words is not in the name."""
        text = self.name.lower()
        if not all(word in text for word in query.lower().split()):
            return 0
        return _BEGIN_SCORE if text.startswith(query.lower()) else _PART_SCORE


class Commands(Provider):
    """Provides the places to go to, and the commands of the key table that work on the screen below the palette."""

    @cached_property
    def _teams(self) -> list[TeamDirectory]:
        # Not in `startup`: words that are typed meanwhile would cancel that, and nothing be found any more.
        screen = self.screen
        root = screen.context.team.directory.root if isinstance(screen, BaseScreen) else None
        return [team for team in team_directories(root) if team.is_own()] if root is not None else []

    async def discover(self) -> Hits:
        # A board of many tasks would hide the commands.
        open_tasks = (place for task, place in self._tasks() if task.status not in CLOSED)
        listed: list[_Place | _Command] = [*self._places(), *self._commands(), *open_tasks]
        for each in listed:
            yield DiscoveryHit(each.title, each.run, text=each.title.plain)

    async def search(self, query: str) -> Hits:
        working = self._commands()
        # The commands that do not work now, each once, with the reason.
        found = {(command.key.label, command.key.says) for command in working}
        works = {key.id for key, _ in working_keys(self.screen)}
        others: list[_Command] = []
        for key in KEYS:
            if key.scope in WHERE and key.says and key.id not in works and (key.label, key.says) not in found:
                found.add((key.label, key.says))
                elsewhere = f"only {WHERE[key.scope]}"
                why = self.screen.why_not(key) if isinstance(self.screen, BaseScreen) else elsewhere
                others.append(_Command(key, "", partial(self._explain, key, why), why))
        tasks = (place for _, place in self._tasks())
        listed: list[_Place | _Command] = [*self._places(), *tasks, *working, *others]
        for each in listed:
            if (score := each.score(query)) > 0:
                yield Hit(score, each.title, each.run, text=each.title.plain)

    def _place(self, name: str, says: str, run: Callable[[], Awaitable[None]]) -> _Place:
        return _Place(name, says, min(_WIDEST, self.app.size.width) - _BESIDE_NAME, run)

    def _places(self) -> Iterator[_Place]:
        """Yield the places to go to, except tasks: needs, agents, views, teams, themes."""
        if not isinstance(self.screen, BaseScreen) or self.screen.IS_FORM:
            return
        context = self.screen.context
        view, navigator = context.view, context.navigator

        async def open_agent(name: str) -> None:
            navigator.open_agent(name)

        for need in view.needs:
            name = f"{one_line(need.agent)} {one_line(need.summary)}"
            yield self._place(name, f"needs you · {NEED_LOOKS[need.kind].word}", partial(navigator.open_need, need.key))
        for agent in view.agents:
            yield self._place(one_line(agent.name), f"agent · {look_of(agent).word}", partial(open_agent, agent.name))
        for key, pressed in working_keys(self.screen):
            if key.id in _VIEWS:
                yield self._place(_VIEWS[key.id], f"view · {pressed}", partial(press, self.app, self.screen, key.id))
        for team in self._teams:
            if team != context.team.directory:
                yield self._place(one_line(team.path.name), "team", partial(navigator.open_team, team))
        yield from (
            self._place(f"theme {theme}", "", self._run(f"use_theme({theme!r})"))
            for theme in names(self.app.available_themes)
        )

    def _tasks(self) -> Iterator[tuple[Task, _Place]]:
        if isinstance(self.screen, BaseScreen) and not self.screen.IS_FORM:
            context = self.screen.context
            for task in context.view.tasks:
                go = partial(context.navigator.open_view, "tasks", str(task.id))
                yield task, self._place(f"#{task.id} {one_line(task.subject)}", "task", go)

    def _commands(self) -> list[_Command]:
        return [
            _Command(key, pressed, partial(press, self.app, self.screen, key.id))
            for key, pressed in working_keys(self.screen)
            if key.id not in _NOT_HERE and key.says and key.id not in _VIEWS
        ] + [
            _Command(key, f":{key.label}", self._run(key.action))
            for key in palette_commands()
            if self.app.check_action(key.action, ())
        ]

    async def _explain(self, key: Key, why_not: str) -> None:
        """Show the view in which a key works, and say how it is pressed there; else say why it does nothing."""
        if not isinstance(self.screen, BaseScreen):
            return
        context = self.screen.context
        if why_not != f"only {WHERE[key.scope]}" or key.scope not in _VIEW_OF or self.screen.IS_FORM:
            context.say(f"{command_name(key)}: {why_not}", "warning")
            return
        await context.navigator.open_view(_VIEW_OF[key.scope])
        context.say(f"{command_name(key)}: press {context.key(key.id)} {WHERE[key.scope]}")

    def _run(self, action: str) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            await self.app.run_action(action)

        return run


_OFFERS = frozenset({"agent.local_model", "agent.offline", "agent.demo", "agent.engine"})
"""Keys that are only of use on a team without agents: the menu has them only if they work."""

_PRESSED, _VERB = 3, 12
"""Cells for a key and for its name in the menu."""

_BESIDE = 16
"""Cells of the selected row that the menu leaves free, because they name the item."""

_ABOVE, _BELOW = 2, 2
"""Lines at the edges of the screen that a menu never covers: status bar and tabs, alert bar and footer."""

_EDGES = 4
"""Cells of a menu that are not for its lines: one of padding on each side, the cursor, the scrollbar."""

_NAMED = 3
"""The most names of selected items in the title of the menu."""


class Menu(ModalScreen[str | None]):
    """The list of what a screen's keys do with its selection, each with its consequence, or why it does nothing now.

    A letter, Enter or a click chooses a key; the result is its id, or None. The list is that of the moment when it was
    opened: the screen `behind` refuses what is no longer possible.
    """

    CSS_PATH = "dialogs.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("verbs")]

    def __init__(self, behind: BaseScreen) -> None:
        super().__init__()
        self._behind = behind
        selection = behind.selection()
        self._rows = LineList(id="verbs", classes="dialog")
        self._about = selection.identity
        self._row = _row_of(behind)
        self._names = _names(selection)
        self._verbs = dict(_verbs(behind, selection))

    def compose(self) -> ComposeResult:
        key, names = self._behind.context.key, list(self._names)
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        about = ", ".join(names[:_NAMED]) + more
        foot = f"{key('list.open')} does it · {key('menu.leave')} back"
        self._rows.rule.entitle(about or "What can be done here", foot)
        yield self._rows

    def on_mount(self) -> None:
        self._rows.show([Row(ident, line) for ident, line in self._verbs.items()])
        self._place()
        self._behind.paint_keys_of(self)

    def on_resize(self) -> None:
        self._place()

    def _place(self) -> None:
        """Put the list beside the selected row, or in the corner if no row is selected."""
        rows, (width, height) = self._rows, self.app.size
        lines = min(len(self._verbs) + 2, max(2, height - _ABOVE - _BELOW))
        wide = min(width, _EDGES + max(map(width_of, self._verbs.values()), default=0))
        at, behind = Offset(0, height), self._behind.focused
        if isinstance(behind, LineList) and behind.selected is not None:
            at = behind.content_region.offset + Offset(0, behind.keys.index(behind.selected) - behind.scroll_offset.y)
        rows.styles.width, rows.styles.height = wide, lines
        rows.styles.offset = min(at.x + _BESIDE, width - wide), max(0, min(at.y, height - _BELOW - lines))

    def on_key(self, event: events.Key) -> None:
        pressed = {event.key, event.character}
        keys_of = self._behind.context.keys_of
        chosen = next((ident for ident in self._verbs if not pressed.isdisjoint(keys_of(ident))), None)
        # The keys of the list itself come first.
        if chosen is not None and binding_of(self, event.key) is None:
            event.stop()
            self.dismiss(chosen)

    @on(LineList.Opened)
    def _choose(self, event: LineList.Opened) -> None:
        self.dismiss(event.key)

    def on_click(self, event: events.Click) -> None:
        rows = self._rows
        if not rows.region.contains(event.screen_x, event.screen_y):
            self.dismiss(None)
        elif event.get_content_offset(rows) is not None:
            self.dismiss(rows.selected)

    async def do(self, ident: str | None) -> None:
        """Press the chosen key, if the selection is still that of the menu; else say why not."""
        behind = self._behind
        if ident is None or not behind.is_current:
            return
        why = behind.refusal(ident) if ident in behind.actions else None
        # A key acts on the selection, but the one that opens acts on the row under the cursor.
        is_other_row = ident == "list.open" and _row_of(behind) != self._row
        if is_other_row or behind.selection().identity != self._about:
            why = CAME_BY_ITSELF
        if why is not None:
            behind.context.say(f"{command_name(BY_ID[ident])}: {why}", "warning")
        else:
            await press(self.app, behind, ident)


def _row_of(screen: BaseScreen) -> str | None:
    """Return the key of the row under the cursor; None if there is none."""
    return screen.focused.selected if isinstance(screen.focused, LineList) else None


def _names(selection: Selection) -> tuple[str, ...]:
    """Return the selected tasks as `#14`, else the names of the selected agents."""
    named = [need.agent for need in selection.needs] or selection.targets or [each.name for each in selection.agents]
    return tuple(f"#{task.id}" for task in selection.marked_tasks) or tuple(dict.fromkeys(named))


def _verbs(screen: BaseScreen, selection: Selection) -> list[tuple[str, Line]]:
    """Return the id and a line for each key that acts on the selection of a screen; those that work now come first."""
    labels, works, others = screen.key_labels, list[tuple[str, Line]](), list[tuple[str, Line]]()
    # A key on tasks or agents is left out if none is selected.
    lacking = {"tasks": not selection.marked_tasks, "agents": not (selection.targets or selection.agents)}
    opens = BY_ID["list.open"]
    rows = screen.focused if isinstance(screen.focused, LineList) else None
    for key in [*([opens] if rows is not None and rows.selected else []), *sorted(screen.verbs, key=_place)]:
        why_not = screen.refusal(key.id) if key.id in screen.actions else None
        pressed = screen.context.key(key.id)
        if why_not is None:
            verb, does = labels.get(key.id) or command_name(key), key.says
            # What its operation says about these agents or tasks.
            if (operation := OPERATIONS.get(key.id)) is not None:
                chosen = selection.marked_tasks if operation.is_on_tasks else selection.agents
                if fitting := [each for each in chosen if operation.fits(each)]:
                    does = operation.consequence(fitting, screen.context.view, screen.context.key) or key.says
            works.append(
                (key.id, (Span(f"{pressed:<{_PRESSED}} ", "key"), Span(f"{verb:<{_VERB}} "), say(does, "dim")))
            )
        elif key.id not in _OFFERS and not lacking.get(key.scope):
            name = f"{pressed:<{_PRESSED}} {command_name(key):<{_VERB}} – "
            others.append((key.id, (Span(name, "dim"), say(why_not, "dim"))))
    return works + others


def _place(key: Key) -> tuple[bool, int]:
    """Return the sort key of a key in the menu: keys of the footer by their rank, then the others."""
    return key.footer is None, key.footer or 0
