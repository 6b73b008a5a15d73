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
    "a request": ("request", "choices", "question"),
    "while you write": ("edit", "form", "prompt", "hire", "draft", "composer", "tick", "choice", "line"),
    "a task": ("tasks",),
    "an agent": ("foreground", "agents"),
    "mail": ("inbox",),
    "a list": ("list", "marks", "sort"),
    "a text": ("log", "folds"),
    "this view": ("tabs", "view", "copy", "back", "help", "teams"),
    "everywhere": ("app",),
}
"""Headings of the help, in its order, and the scopes below each."""

WHERE = {
    "request": "on the page of a request",
    "question": "on the page of a question",
    "tasks": "on the task board",
    "agents": "where an agent is selected",
    "inbox": "in the Inbox",
    "marks": "in a list of agents",
    "sort": "in a list of agents",
    "list": "in a list",
    "log": "in a text",
    "folds": "in a text",
    "tabs": "on the page of an agent",
    "view": "in a numbered view",
    "copy": "where there is something to copy",
    "app": "when there is something to do it to",
}
"""Where the keys of a scope work, for whoever looks for one elsewhere."""

KEYS: tuple[Key, ...] = (
    Key("app.next", "!", "app.next_need", "next", "what needs you next: a request opened, else why it needs you", "app",
        10),
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
    Key("agent.talk", "l", "talk", "lead", "talk to the lead; hires one if nobody sits in the seat", "agents", 75,
        changes=True),
    Key("request.approve", "a", "approve", "approve", "say yes to exactly what is shown", "request", 3, changes=True),
    Key("request.deny", "d", "deny", "deny", "say no, with feedback", "request", 4, changes=True),
    Key("request.edit", "e", "edit", "edit→approve", "edit the plan, then approve it", "request", 6, changes=True),
    Key("request.rule", "A", "approve_rule", "approve+rule", "say yes, and to all that the rule shown covers",
        "request", 5, changes=True),
    Key("request.compare", "=", "compare", "changes", "what changed since the revision before", "request", 7),
    Key("request.ask_back", "c", "ask_back", "ask back", "send a question, with a no for now: the plan is revised",
        "request", 8, changes=True),
    Key("request.next", "]", "next_request", "next", "the next thing that needs you", "request", 73),
    Key("edit.send", "ctrl+s", "send", "approve this", "approve the plan as you edited it", "edit", 2, changes=True),
    Key("hire.send", "ctrl+s", "send", "hire", "hire the agent that the form describes", "hire", 5, changes=True),
    Key("hire.cancel", "escape", "back", "cancel", "leave without hiring", "hire", 9),
    Key("hire.save", "ctrl+p", "save_profile", "save as profile", "keep what the form says under a name", "hire", 50,
        changes=True),
    Key("hire.load", "ctrl+o", "load_profile", "load profile", "fill the form with what was kept", "hire", 52,
        changes=True),
    Key("form.next", "enter,tab", "screen.next_field", "next field", "on to the next field", "form", 8),
    Key("form.down", "down", "screen.next_field", "", "on to the next field", "form"),
    Key("form.before", "up,shift+tab", "app.focus_previous", "", "back to the field before", "form"),
    Key("prompt.next", "tab", "app.focus_next", "next field", "on to the next field; Enter is a new line", "prompt", 8),
    Key("foreground.leave", "b", "to_background", "background", "wait for its result no longer; it goes on",
        "foreground", 12),
    Key("request.choose", "enter", "open", "answer", "answer with the choice under the cursor", "choices", 3),
    Key("request.words", "c", "words", "own words", "answer in words of your own", "question", 4, changes=True),
    Key("tick.turn", "space", "turn", "yes/no", "yes or no", "tick", 6),
    Key("choice.next", "right,l,space", "turn(1)", "change", "the next value", "choice", 6),
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
    Key("task.reopen", "o", "reopen", "reopen", "open the selected task again, for anybody to take", "tasks", 29,
        changes=True),
    Key("composer.leave", "escape", "leave", "keep", "back to the pane, and what is written stays", "composer", 68),
    Key("draft.send", "enter", "submit", "send", "send what is written", "draft", 12),
    Key("draft.edit", "ctrl+e", "edit", "editor", "write it in $VISUAL or $EDITOR", "draft", 14),
    Key("draft.complete", "tab", "complete", "complete", "complete the name that is begun", "draft", 16),
    Key("view.tab", "]", "next_tab", "tab", "the next tab", "tabs", 14),
    Key("view.tab_back", "[", "previous_tab", "", "the tab before", "tabs"),
    Key("agent.sort", "s", "sort", "sort", "sort by the next column", "sort", 70),
    Key("agent.reverse", "S", "reverse", "reverse", "turn the order round", "sort"),
    Key("agent.wide", "w", "wide", "wide", "the columns of a wider terminal, and back", "sort"),
    Key("view.group", "f", "turn_group", "filter", "only who needs you, runs, is idle, is done", "view", 73),
    Key("view.filter", "/", "filter", "find", "show only what matches the words that you type", "view", 60),
    Key("view.pane", "tab", "app.focus_next", "pane", "the next pane", "view", 56),
    Key("view.pane_back", "shift+tab", "app.focus_previous", "", "the pane before", "view"),
    Key("view.zoom", "z", "zoom", "zoom", "this pane alone on the screen, and back", "view"),
    Key("view.copy", "y", "copy", "copy", "copy this line, or all of this text, to your terminal's clipboard", "copy",
        76),
    Key("list.down", "j,down", "down", "", "down", "list"),
    Key("list.up", "k,up", "up", "", "up", "list"),
    Key("list.top", "g,home", "top", "", "to the top", "list"),
    Key("list.bottom", "G,end", "bottom", "", "to the end", "list"),
    Key("list.page_down", "ctrl+d,pagedown", "page_down", "", "half a page down", "list"),
    Key("list.page_up", "ctrl+u,pageup", "page_up", "", "half a page up", "list"),
    Key("list.mark", "space", "mark", "mark", "mark it", "marks", 74),
    Key("list.mark_all", "*", "mark_all", "mark all", "mark all that are shown, or none", "marks"),
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
    Key("app.leave", "q", "app.leave", "leave", "leave the dashboard; the workers go on, a demo's end", "app", 66),
    Key("app.notify", "", "turn_notify", "notify", "tell of needs: not at all, by the bell, on the desktop", "app"),
    Key("app.halt", "", "halt", "halt", "end everybody; asks for the team's name first, the files stay", "app",
        changes=True),
    Key("view.back", "escape", "back", "back", "one layer back", "back", 68),
    Key("help.leave", "escape,q,question_mark", "dismiss", "", "close the help", "help"),
    Key("teams.leave", "escape", "leave", "stay", "stay with this team", "teams", 68),
    Key("teams.leave_too", "q,t", "leave", "", "stay with this team", "teams"),
)  # fmt: skip

Pressed = Callable[[str], str]
"""How a key is pressed, by its id."""

BY_ID = {key.id: key for key in KEYS}

NAMES = {
    "enter": "⏎", "escape": "Esc", "space": "Space", "down": "↓", "up": "↑", "pagedown": "PgDn", "pageup": "PgUp",
    "home": "Home", "end": "End", "tab": "Tab", "shift+tab": "S-Tab",
}  # fmt: skip


def of_actions(scope: str, actions: Iterable[str]) -> list[str]:
    """The ids of some actions in a scope."""
    wanted = set(actions)
    return [key.id for key in KEYS if key.scope == scope and key.action in wanted]


def bindings(*scopes: str) -> list[Binding]:
    """The keys of some scopes, for a screen or a widget to take as its own."""
    return [key.binding for key in KEYS if key.scope in scopes and key.keys]


def name_of(key: Key) -> str:
    """What a key's command is called: by its label, else by its id."""
    return key.label or key.id.partition(".")[2].replace("_", " ")


def commands() -> list[Key]:
    """What only the palette does, since no key may do it."""
    return [key for key in KEYS if not key.keys]


def show_key(name: str, *, ascii_only: bool = False) -> str:
    """A key as it is written on the screen: `^s` for `ctrl+s`; by its name where its sign cannot be shown."""
    if name.startswith("ctrl+"):
        return "^" + name.removeprefix("ctrl+")
    shown = NAMES.get(name) or format_key(name)
    return name.capitalize() if ascii_only and not shown.isascii() else shown


def default_key(ident: str) -> str:
    """How the key `ident` is pressed where nobody has given it another."""
    return show_key(BY_ID[ident].keys.split(",")[0])


def known(ids: Iterable[str | None]) -> list[Key]:
    """The keys with these ids, each once, in the table's order."""
    wanted = set(ids)
    return [key for key in KEYS if key.id in wanted]
