"""The binding table: every key of the dashboard, once. Footer, help and palette are made from it.

A key belongs to a scope; a screen or a widget takes the scopes that it understands. `footer` ranks a key among those
that work here and now, the lowest first; a key without a rank stands in the help and in the palette alone.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from textual.binding import Binding
from textual.keys import format_key


@dataclass(frozen=True)
class Key:
    """One key, or without `keys` a command of the palette alone.

    `id` names it in a file of the user's own keys; the footer shows `label`, help and palette `says`.
    """

    id: str
    keys: str
    action: str
    label: str
    says: str
    scope: str
    footer: int | None = None
    changes: bool = False

    @property
    def binding(self) -> Binding:
        """The key as Textual knows it."""
        return Binding(self.keys, self.action, self.label, tooltip=self.says, id=self.id, show=self.footer is not None)


GROUPS: dict[str, tuple[str, ...]] = {
    "a request": ("request", "choices", "digits"),
    "while you write": ("edit", "hire", "draft", "composer", "tick", "choice", "line"),
    "a task": ("tasks",),
    "an agent": ("foreground", "agents"),
    "mail": ("inbox",),
    "a list": ("list", "marks", "sort"),
    "a text": ("log", "folds"),
    "this view": ("tabs", "view", "back", "help", "teams"),
    "everywhere": ("app",),
}
"""Headings of the help, in its order, and the scopes below each."""

KEYS: tuple[Key, ...] = (
    Key("app.next", "!", "app.next_need", "next", "the next thing that needs you, opened on its own page", "app", 10),
    Key("list.open", "enter", "open", "open", "go in", "list", 20),
    Key("agent.answer", "a", "answer", "answer", "open what it asks", "agents", 30, changes=True),
    Key("agent.resume", "r", "resume", "resume", "start it again, with its memory", "agents", 32, changes=True),
    Key("agent.fresh", "R", "resume_fresh", "fresh", "start it again from its prompt, without memory", "agents", 33,
        changes=True),
    Key("agent.acknowledge", "D", "acknowledge", "seen", "acknowledge its death", "agents", 34, changes=True),
    Key("agent.message", "m", "message", "msg", "write to the selected agent", "agents", 40, changes=True),
    Key("agent.broadcast", "b", "broadcast", "all", "write to the marked agents, else to everybody", "agents", 48,
        changes=True),
    Key("agent.hire", "n", "hire", "new", "hire an agent", "agents", 42, changes=True),
    Key("agent.clone", "N", "clone", "clone", "hire another on the terms of the selected agent", "agents",
        changes=True),
    Key("agent.stop", "x", "stop", "stop", "ask it to shut down", "agents", 44, changes=True),
    Key("agent.end", "X", "end", "end it", "end it and everything it started: press twice within 2 s", "agents", 46,
        changes=True),
    Key("agent.pause", "p", "pause", "pause", "hold it at its next safe point; again: it goes on", "agents", 43,
        changes=True),
    Key("agent.pause_all", "P", "pause_all", "pause all", "hold everybody; again, when all are held: all go on",
        "agents", changes=True),
    Key("agent.interrupt", "i", "interrupt", "interrupt", "end its present turn; it stays, and reads what you write",
        "agents", 72, changes=True),
    Key("agent.talk", "l", "talk", "lead", "talk to the lead; hires one if nobody sits in the seat", "agents", 74,
        changes=True),
    Key("request.approve", "a", "approve", "approve", "say yes to exactly what is shown", "request", 20, changes=True),
    Key("request.deny", "d", "deny", "deny", "say no, with feedback", "request", 22, changes=True),
    Key("request.edit", "e", "edit", "edit→approve", "edit the plan, then approve it", "request", 24, changes=True),
    Key("request.rule", "A", "approve_rule", "approve+rule", "say yes, and to all that the rule shown covers",
        "request", 21, changes=True),
    Key("request.compare", "=", "compare", "changes", "what changed since the revision before", "request", 25),
    Key("request.ask_back", "c", "ask_back", "ask back", "send a question, with a no for now: the agent revises",
        "request", 26, changes=True),
    Key("request.next", "]", "next_request", "next", "the next thing that needs you", "request"),
    Key("edit.send", "ctrl+s", "send", "send", "send it", "edit", 12, changes=True),
    Key("hire.save", "ctrl+p", "save_profile", "save as profile", "keep what the form says under a name", "hire", 14,
        changes=True),
    Key("hire.load", "ctrl+o", "load_profile", "load profile", "fill the form with what was kept", "hire", 16,
        changes=True),
    Key("foreground.leave", "b", "to_background", "background", "wait for its result no longer; it goes on",
        "foreground", 12),
    Key("request.choose", "enter", "open", "answer", "answer with the choice under the cursor", "choices", 20),
    *(
        Key(f"request.choice{number}", str(number), f"choose({number})", "", f"to choice {number}", "digits")
        for number in range(1, 10)
    ),
    Key("tick.turn", "space,enter", "turn", "", "yes or no", "tick"),
    Key("choice.next", "right,l,space", "turn(1)", "", "the next value", "choice"),
    Key("choice.before", "left,h", "turn(-1)", "", "the value before", "choice"),
    Key("line.leave", "escape", "leave", "", "back without sending it", "line"),
    Key("inbox.reply", "m", "reply", "reply", "write to the owner of this mailbox", "inbox", 40, changes=True),
    Key("inbox.broadcast", "b", "broadcast", "all", "write to everybody", "inbox", 42, changes=True),
    Key("inbox.unread", "u", "toggle_unread", "unread only", "show what is not read yet, or all", "inbox", 44),
    Key("task.new", "+", "new_task", "new task", "put a task on the board", "tasks", 22, changes=True),
    Key("task.assign", "a", "assign", "assign", "give the selected task to an agent, who is told", "tasks", 24,
        changes=True),
    Key("task.block", "b", "block", "wait for", "say which tasks must be completed before it", "tasks", 26,
        changes=True),
    Key("task.cancel", "C", "cancel", "cancel", "cancel the selected task", "tasks", 28, changes=True),
    Key("composer.leave", "escape", "leave", "keep", "back to the pane, and what is written stays", "composer", 68),
    Key("draft.send", "enter", "submit", "send", "send what is written", "draft", 12),
    Key("draft.edit", "ctrl+e", "edit", "editor", "write it in $VISUAL or $EDITOR", "draft", 14),
    Key("draft.complete", "tab", "complete", "complete", "complete the name that is begun", "draft", 16),
    Key("view.tab", "]", "next_tab", "tab", "the next tab", "tabs", 14),
    Key("view.tab_back", "[", "previous_tab", "", "the tab before", "tabs"),
    Key("agent.sort", "s", "sort", "sort", "sort by the next column", "sort", 70),
    Key("agent.reverse", "S", "reverse", "reverse", "turn the order round", "sort"),
    Key("agent.wide", "w", "wide", "wide", "the columns of a wider terminal, and back", "sort"),
    Key("view.group", "f", "turn_group", "states", "only who needs you, runs, is idle, is done", "view"),
    Key("view.filter", "/", "filter", "find", "show only what matches: words, s:state, #task", "view", 60),
    Key("view.pane", "tab", "app.focus_next", "pane", "the next pane", "view", 56),
    Key("view.pane_back", "shift+tab", "app.focus_previous", "", "the pane before", "view"),
    Key("view.zoom", "z", "zoom", "zoom", "this pane alone on the screen, and back", "view"),
    Key("view.copy", "y", "copy", "copy", "copy the selected line to the clipboard of your terminal", "view"),
    Key("list.down", "j,down", "down", "", "down", "list"),
    Key("list.up", "k,up", "up", "", "up", "list"),
    Key("list.top", "g,home", "top", "", "to the top", "list"),
    Key("list.bottom", "G,end", "bottom", "", "to the end", "list"),
    Key("list.page_down", "ctrl+d,pagedown", "page_down", "", "half a page down", "list"),
    Key("list.page_up", "ctrl+u,pageup", "page_up", "", "half a page up", "list"),
    Key("list.mark", "space", "mark", "", "mark it", "marks"),
    Key("list.mark_all", "*", "mark_all", "", "mark all that are shown, or none", "marks"),
    Key("log.down", "j,down", "scroll_line(1)", "", "a line down", "log"),
    Key("log.up", "k,up", "scroll_line(-1)", "", "a line up", "log"),
    Key("log.top", "g,home", "scroll_top", "", "to the top", "log"),
    Key("log.bottom", "G,end", "scroll_bottom", "", "to the end", "log"),
    Key("log.page_down", "ctrl+d,pagedown,space", "scroll_page(1)", "", "half a page down", "log"),
    Key("log.page_up", "ctrl+u,pageup", "scroll_page(-1)", "", "half a page up", "log"),
    Key("fold.turn", "enter", "turn", "unfold", "all of it, or one line again", "folds", 20),
    Key("fold.all", "o", "turn_all", "unfold all", "unfold everything, or fold it again", "folds", 59),
    Key("fold.follow", "f", "follow", "follow", "follow the end as it grows, or stay", "folds", 58),
    Key("log.follow", "f", "follow", "follow", "follow the end as it grows, or stay", "log", 58),
    Key("app.board", "1", "app.view('board')", "", "the Board", "app"),
    Key("app.inbox", "2", "app.view('inbox')", "", "every mailbox", "app"),
    Key("app.tasks", "3", "app.view('tasks')", "", "the task board", "app"),
    Key("app.needs", "4", "app.view('needs')", "", "everything that needs you", "app"),
    Key("app.processes", "5", "app.view('processes')", "", "the worker processes", "app"),
    Key("app.feed", "6", "app.view('feed')", "", "everything that happens, newest last", "app"),
    Key("app.cost", "7", "app.view('cost')", "", "what everybody costs", "app"),
    Key("app.teams", "t", "app.teams", "teams", "another team of this root", "app"),
    Key("app.palette", ":,ctrl+p", "app.command_palette", "command", "every command that works here", "app", 62),
    Key("app.help", "?", "app.help", "help", "what the keys of this pane do", "app", 64),
    Key("app.theme", "T", "app.turn_theme", "", "dark, light or high-contrast colours; remembered", "app"),
    Key("app.leave", "q", "app.leave", "leave", "leave the dashboard; the workers go on", "app", 66),
    Key("app.notify", "", "turn_notify", "notify", "tell of needs: not at all, by the bell, on the desktop", "app"),
    Key("app.halt", "", "halt", "halt", "end everybody; asks for the team's name first, the files stay", "app",
        changes=True),
    Key("view.back", "escape", "back", "back", "one layer back", "back", 68),
    Key("help.leave", "escape,q,question_mark", "dismiss", "", "close the help", "help"),
    Key("teams.leave", "escape,q,t", "leave", "", "stay with this team", "teams"),
)  # fmt: skip

Pressed = Callable[[str], str]
"""How a key is pressed, by its id."""

BY_ID = {key.id: key for key in KEYS}

NAMES = {
    "enter": "⏎", "escape": "Esc", "space": "Space", "down": "↓", "up": "↑", "pagedown": "PgDn", "pageup": "PgUp",
    "home": "Home", "end": "End", "tab": "Tab", "shift+tab": "S-Tab",
}  # fmt: skip


def of_actions(scope: str, actions: Iterable[str]) -> frozenset[str]:
    """The keys of some actions in a scope."""
    wanted = set(actions)
    return frozenset(key.keys for key in KEYS if key.scope == scope and key.action in wanted)


def bindings(*scopes: str) -> list[Binding]:
    """The keys of some scopes, for a screen or a widget to take as its own."""
    return [key.binding for key in KEYS if key.scope in scopes and key.keys]


def commands() -> list[Key]:
    """What only the palette does, since no key may do it."""
    return [key for key in KEYS if not key.keys]


def show_key(name: str) -> str:
    """A key as it is written on the screen: `^s` for `ctrl+s`."""
    if name.startswith("ctrl+"):
        return "^" + name.removeprefix("ctrl+")
    return NAMES.get(name) or format_key(name)


def default_key(ident: str) -> str:
    """How the key `ident` is pressed where nobody has given it another."""
    return show_key(BY_ID[ident].keys.split(",")[0])


def known(ids: Iterable[str | None]) -> list[Key]:
    """The keys with these ids, each once, in the table's order."""
    wanted = set(ids)
    return [key for key in KEYS if key.id in wanted]
