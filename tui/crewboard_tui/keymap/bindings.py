"""The table of all keys. Footer, help, palette and `crewboard keys` are built from it.

The keys of operations on agents and tasks are declared in `crewboard.operations`; all others are declared here.

Each key belongs to a scope; a screen or widget takes the scopes that it handles. `footer` ranks a key among those that
work at the moment, the lowest first; a key without a rank is listed only in the help and the palette.
"""

from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct
from textual.binding import Binding
from textual.keys import format_key

from crewboard.operations import OPERATIONS


class Key(Struct, frozen=True):
    """One key, or without `keys` a command of the palette only.

    `id` names it in the user's keys.toml; `keys` are Textual's names, separated by commas. The footer shows `label`,
    help and palette `says`. `action` is a method of a widget or of the app; if it is empty, the screen's action with
    the same `id` is meant. `changes` is True if it changes something, `elsewhere` if it also does so with agents of
    another program. `always` is True if no widget that has another use for the key takes it.
    """

    id: str
    keys: str
    action: str
    label: str
    says: str
    scope: str
    footer: int | None = None
    changes: bool = False
    elsewhere: bool = False
    always: bool = False

    @property
    def binding(self) -> Binding:
        """Return the key as a Textual binding."""
        action = self.action or f"perform('{self.id}')"
        is_shown = self.footer is not None
        return Binding(
            self.keys, action, self.label, tooltip=self.says, id=self.id, show=is_shown, priority=self.always
        )

    @property
    def steers(self) -> bool:
        """Return True if, on a team of another program, only that program can do what the key does."""
        return self.changes and self.scope in _STEERING and not self.elsewhere and self.id not in _FITTING


_STEERING = frozenset({"agents", "hire", "inbox", "tasks", "changes", "accept"})
"""Scopes of keys that start, steer or end agents, or change their tasks and work."""

_FITTING = frozenset({
    "agent.answer", "agent.acknowledge", "agent.message", "agent.broadcast", "inbox.reply", "inbox.broadcast",
})  # fmt: skip
"""Keys in these scopes that also work on a team of another program, or whose command says how to allow them there."""


GROUPS: dict[str, tuple[str, ...]] = {
    "a request": ("request", "choices", "question"),
    "while you write": ("edit", "form", "prompt", "hire", "draft", "text", "composer", "tick", "choice", "line"),
    "a task": ("tasks",),
    "an agent": ("foreground", "agents"),
    "changes": ("changes", "diff", "accept"),
    "mail": ("inbox",),
    "a list": ("rules", "list", "marks", "sort", "wide"),
    "a text": ("plan", "log", "folds"),
    "this view": ("tabs", "view", "menu", "verbs", "copy", "reveal", "back", "help", "palette", "teams"),
    "everywhere": ("app",),
}
"""The headings of the help, in order, and the scopes under each."""

WHERE = {
    "request": "on the page of a request",
    "reveal": "on the page of a request, a diff or a merge",
    "question": "on the page of a question",
    "tasks": "on the task board",
    "agents": "in views of agents",
    "inbox": "in the Inbox",
    "changes": "in Changes",
    "diff": "on the page of a diff",
    "accept": "where work is merged",
    "rules": "in the list of permission rules",
    "marks": "in the list of a view",
    "sort": "in the list of a view",
    "wide": "in the list of the Board",
    "list": "in a list",
    "log": "in a text",
    "plan": "on a line of a plan",
    "folds": "in a text",
    "tabs": "on the page of an agent",
    "view": "in a numbered view",
    "menu": "where something can be done with what is selected",
    "copy": "where there is something to copy",
    "app": "when it has something to act on",
}
"""The place where the keys of a scope work, shown if one is pressed elsewhere."""


def _keys_of_operations(scope: str) -> Iterator[Key]:
    """Yield the keys of the operations on agents, or of those on tasks."""
    for each in OPERATIONS.values():
        if each.keys and each.is_on_tasks == (scope == "tasks"):
            yield Key(each.ident, each.keys, "", each.label, each.help, scope, each.footer,
                      changes=True, elsewhere=each.elsewhere)  # fmt: skip
        if each.keys_for_all and scope == "agents":
            ident, label = f"{each.ident}_all", f"{each.label} all"
            yield Key(ident, each.keys_for_all, "", label, each.help_for_all, "agents", changes=True)


KEYS: tuple[Key, ...] = (
    Key("app.next", "!", "app.next_need", "next", "open the next request or need", "app", 10),
    Key("list.open", "enter", "open", "open", "open it", "list", 20),
    Key("agent.answer", "a", "", "answer", "open its request, or its plan with held steps", "agents", 30, changes=True),
    Key("agent.resume", "r", "", "resume", "resume it with its memory, or let it try again", "agents", 32,
        changes=True),
    Key("agent.fresh", "R", "", "fresh", "restart it from its prompt, without memory", "agents", 33, changes=True),
    Key("agent.acknowledge", "D", "", "seen", "acknowledge its crash, failure or result", "agents", 34, changes=True),
    Key("agent.limit", "L", "", "raise limit", "raise the limit that stopped it, and continue", "agents", 31,
        changes=True),
    Key("agent.message", "m", "", "msg", "write to the selected agent", "agents", 40, changes=True),
    Key("agent.broadcast", "b", "", "all", "write to the marked agents, else to all", "agents", 48, changes=True),
    Key("agent.hire", "n", "", "new", "hire an agent", "agents", 42, changes=True),
    Key("agent.local_model", "M", "", "use local model", "let the team use a model of this machine that was found",
        "agents", 41, changes=True),
    Key("agent.offline", "F", "", "try offline", "without a key: hire an agent on the offline model, in this folder",
        "agents", changes=True),
    Key("agent.demo", "O", "", "look around", "without a key: show a team at work on a scratch copy", "agents"),
    Key("agent.engine", "E", "", "use engine", "without a key: let the team use your Claude Code or Codex", "agents",
        changes=True),
    Key("agent.clone", "N", "", "clone", "hire another agent like the selected one", "agents", changes=True),
    *_keys_of_operations("agents"),
    Key("agent.talk", "l", "", "lead", "talk to the lead; hires one if needed", "agents", 75, changes=True),
    Key("agent.put_back", "U", "", "put back", "put files back that it changed in its last assignment", "agents",
        changes=True),
    Key("request.approve", "a", "", "approve", "approve exactly what is shown", "request", 3, changes=True),
    Key("request.deny", "d", "", "deny", "deny it with feedback", "request", 4, changes=True),
    Key("request.edit", "e", "", "edit→approve", "edit the plan, then approve it", "request", 7, changes=True),
    Key("request.rule", "A", "", "approve+rule", "approve it and later calls that the rule covers",
        "request", 5, changes=True),
    Key("request.rule_for", "W", "", "rule for", "choose whether its rule is for the agent, its type or all", "request",
        9, changes=True),
    Key("request.compare", "=", "", "changes", "show changes since the previous revision", "request", 7),
    Key("request.terms", "o", "", "terms", "choose what its agent may do until the result", "request", 8, changes=True),
    Key("request.reveal", "K", "", "show keys", "show what is hidden because it looks like a key", "reveal", 4),
    Key("request.note", "c", "", "note", "write a note on lines of the plan; your answer sends it", "request", 6,
        changes=True),
    Key("request.ask_back", "B", "", "ask back", "ask a question; the plan is revised", "request", 8, changes=True),
    Key("request.next", "]", "", "next", "open the next need", "request", 73),
    Key("edit.send", "ctrl+s", "", "approve this", "approve the edited plan, or send it back with your notes",
        "edit", 2, changes=True),
    Key("hire.send", "ctrl+s", "", "hire", "hire the agent", "hire", 5, changes=True),
    Key("hire.cancel", "escape", "", "cancel", "leave without hiring", "hire", 9),
    Key("hire.save", "ctrl+p", "", "save as profile", "save the form as a profile", "hire", 50, changes=True),
    Key("hire.load", "ctrl+o", "", "load profile", "fill the form from a profile", "hire", 52, changes=True),
    Key("form.next", "enter,tab", "screen.next_field", "next field", "go to the next field", "form", 8),
    Key("form.down", "down", "screen.next_field", "", "go to the next field", "form"),
    Key("form.before", "up,shift+tab", "app.focus_previous", "", "go to the previous field", "form"),
    Key("prompt.next", "tab", "app.focus_next", "next field", "go to the next field; Enter adds a line", "prompt", 8),
    Key("foreground.leave", "b", "", "background", "stop waiting; the agent keeps working", "foreground", 12),
    Key("request.choose", "enter", "open", "answer", "answer with the selected option", "choices", 3),
    Key("request.words", "c,a", "", "own words", "answer in your own words", "question", 4, changes=True),
    Key("tick.turn", "space", "turn", "yes/no", "switch it on or off", "tick", 6),
    Key("choice.next", "right,l,space", "turn(1)", "change", "choose the next value", "choice", 6),
    Key("choice.before", "left,h", "turn(-1)", "", "choose the previous value", "choice"),
    Key("line.leave", "escape", "leave", "", "leave without sending", "line"),
    Key("rule.revoke", "delete", "", "revoke", "revoke the selected rule", "rules", 30, changes=True),
    Key("inbox.reply", "m", "", "reply", "write to the owner of this mailbox", "inbox", 40, changes=True),
    Key("inbox.broadcast", "b", "", "all", "write to all agents", "inbox", 42, changes=True),
    Key("inbox.unread", "u", "", "unread only", "show only unread messages, or all", "inbox", 44),
    *_keys_of_operations("tasks"),
    Key("changes.next", "]", "", "next file", "show the next file", "diff", 14),
    Key("changes.previous", "[", "", "", "show the previous file", "diff"),
    Key("changes.accept", "a", "", "merge", "see what would be committed, then merge its work", "changes", 13,
        changes=True),
    Key("changes.undo", "u", "", "take back", "take the last merge of its work back", "changes", 21, changes=True),
    Key("changes.put_back", "U", "", "put back", "put back its last assignment, or this file or hunk", "changes", 22,
        changes=True),
    Key("changes.discard", "C", "", "discard", "throw the work of an agent that has ended away: type yes", "changes",
        changes=True),
    Key("changes.resolve", "v", "", "have it resolved", "ask the agent to resolve the conflicts of its work", "changes",
        14, changes=True),
    Key("accept.confirm", "a", "", "merge", "commit the work as it is shown", "accept", 3, changes=True),
    Key("accept.how", "h", "", "how", "squash, merge or rebase", "accept", 4, changes=True),
    Key("accept.into", "i", "", "into", "choose the branch", "accept", 5, changes=True),
    Key("accept.message", "e", "", "message", "write the message of the commit", "accept", 6, changes=True),
    Key("accept.last", "n", "", "last snapshot", "take the last snapshot, also while the agent is at work", "accept", 7,
        changes=True),
    Key("changes.note", "c", "", "note", "write a note on this line; it is kept until it is sent", "diff", 15,
        changes=True),
    Key("changes.send", "ctrl+s", "", "send notes", "send all notes to the agent, as one message", "diff", 16,
        changes=True),
    Key("changes.read", "ctrl+r", "", "read again", "read again what agents changed", "changes", 73),
    Key("composer.leave", "escape", "leave", "keep", "return to the pane; the text is kept", "composer", 68),
    Key("draft.send", "enter", "submit", "send", "send the text", "draft", 12),
    Key("draft.newline", "ctrl+j,shift+enter,alt+enter", "newline", "new line", "add a line to the text", "draft", 13),
    Key("draft.older", "up", "older", "", "at the first line: show the text that you sent before", "draft"),
    Key("draft.newer", "down", "newer", "", "at the last line: show the text that you sent after it", "draft"),
    Key("draft.edit", "ctrl+e", "edit", "editor", "write in $VISUAL or $EDITOR", "draft", 14),
    Key("text.undo", "ctrl+underscore", "undo", "", "undo the last change of the text; ctrl+y redoes it", "text"),
    Key("draft.complete", "tab", "complete", "complete", "complete the name, the path or the command", "draft", 16),
    Key("view.tab", "]", "", "tab", "show the next tab", "tabs", 14),
    Key("view.tab_back", "[", "", "", "show the previous tab", "tabs"),
    Key("agent.sort", "s", "sort", "sort", "sort by the next column or property", "sort", 70),
    Key("agent.reverse", "S", "reverse", "reverse", "reverse the order; of needs: by what waits behind", "sort"),
    Key("agent.wide", "w", "wide", "wide", "show more columns, or the selected agent", "wide"),
    Key("view.group", "f", "", "filter", "filter by state or kind; the title says which", "view", 73),
    Key("view.filter", "/", "", "find", "show only rows that match your words", "view", 60),
    Key("view.pane", "tab", "app.focus_next", "pane", "go to the next pane", "view", 56),
    Key("view.pane_back", "shift+tab", "app.focus_previous", "", "go to the previous pane", "view"),
    Key("view.zoom", "z", "", "zoom", "show only this pane, or all panes", "view"),
    Key("view.menu", ".", "", "more", "list what can be done with the selection, and why the rest cannot", "menu", 49),
    Key("menu.leave", "escape", "dismiss", "back", "close the menu", "verbs", 68),
    Key("menu.leave_too", ".", "dismiss", "", "close the menu", "verbs"),
    Key("view.copy", "y", "", "copy", "copy this line or text to the clipboard", "copy", 76),
    Key("list.down", "j,down", "down", "", "move down", "list"),
    Key("list.up", "k,up", "up", "", "move up", "list"),
    Key("list.top", "g,home", "top", "", "go to the top", "list"),
    Key("list.bottom", "G,end", "bottom", "", "go to the end", "list"),
    Key("list.page_down", "ctrl+d,pagedown", "page_down", "", "scroll half a page down", "list"),
    Key("list.page_up", "ctrl+u,pageup", "page_up", "", "scroll half a page up", "list"),
    Key("list.mark", "space", "mark", "mark", "mark it, or unmark it", "marks", 74),
    Key("list.mark_all", "*", "mark_all", "mark all", "mark all shown rows, or none", "marks"),
    Key("plan.step", "space", "step", "hold", "hold, refuse or do numbered steps; later, release them", "plan", 5),
    Key("plan.next_note", "n", "note(1)", "next note", "go to the next line with a note on it", "plan", 8),
    Key("plan.previous_note", "N", "note(-1)", "", "go to the line with a note before this one", "plan"),
    Key("plan.more", "shift+down", "more(1)", "", "take the next line into the range for a note", "plan"),
    Key("plan.less", "shift+up", "more(-1)", "", "take the line before into the range for a note", "plan"),
    Key("log.down", "j,down", "scroll_line(1)", "", "scroll a line down", "log"),
    Key("log.up", "k,up", "scroll_line(-1)", "", "scroll a line up", "log"),
    Key("log.top", "g,home", "scroll_top", "", "go to the top", "log"),
    Key("log.bottom", "G,end", "scroll_bottom", "", "go to the end", "log"),
    Key("log.page_down", "ctrl+d,pagedown,space", "scroll_page(1)", "", "scroll half a page down", "log"),
    Key("log.page_up", "ctrl+u,pageup", "scroll_page(-1)", "", "scroll half a page up", "log"),
    Key("fold.turn", "enter", "turn", "unfold", "unfold or fold this entry", "folds", 20),
    Key("fold.all", "o", "turn_all", "unfold all", "unfold or fold all entries", "folds", 59),
    Key("fold.follow", "f", "follow", "follow", "follow the end, or stop following", "folds", 58),
    Key("log.follow", "f", "follow", "follow", "follow the end, or stop following", "log", 58),
    Key("app.board", "1", "app.view('board')", "", "show the Board", "app"),
    Key("app.inbox", "2", "app.view('inbox')", "", "show all mailboxes", "app"),
    Key("app.tasks", "3", "app.view('tasks')", "", "show the task board", "app"),
    Key("app.needs", "4", "app.view('needs')", "", "show everything that needs you", "app"),
    Key("app.processes", "5", "app.view('processes')", "", "show the worker processes", "app"),
    Key("app.feed", "6", "app.view('feed')", "", "show all activity, newest last", "app"),
    Key("app.cost", "7", "app.view('cost')", "", "show what each agent costs", "app"),
    Key("app.changes", "8", "app.view('changes')", "", "show what each agent changed in its worktree", "app"),
    Key("app.rules", "9", "app.rules", "rules", "show the permission rules and how often each decided", "app"),
    Key("app.absence", "0", "app.absence", "while away", "show what happened while you were away", "app"),
    Key("app.hosts", "H", "app.hosts", "hosts", "show the hosts that run the agents of a team in PostgreSQL", "app"),
    Key("app.teams", "t", "app.teams", "teams", "switch to another team", "app"),
    Key("app.palette", ":,ctrl+p", "app.command_palette", "command", "open the command palette", "app", 62),
    Key("app.help", "?", "app.help", "help", "show the keys of this pane", "app", 64),
    Key("app.theme", "T", "app.turn_theme", "", "change the colours: the next of the themes", "app"),
    Key("app.leave", "q", "app.leave", "leave", "leave, as ctrl+c does; agents keep running, a demo ends", "app", 66),
    Key("app.suspend", "ctrl+z", "app.suspend", "", "suspend the dashboard; the shell's `fg` continues it", "app",
        always=True),
    Key("app.notify", "", "turn_notify", "notify", "set notifications: off, bell, desktop", "app"),
    Key("app.restart_supervisor", "", "restart_supervisor", "restart supervisor",
        "replace a supervisor that hangs; agents keep working", "app", changes=True),
    Key("app.halt", "", "halt", "halt", "stop all agents; asks for the team's name", "app", changes=True),
    Key("app.team_create", "", "team_create", "new team", "create a team and show it", "app", changes=True),
    Key("app.team_delete", "", "team_delete", "delete team", "end this team's agents; asks for its name", "app",
        changes=True),
    Key("view.back", "escape", "", "back", "go back one step", "back", 68),
    Key("help.leave", "escape", "dismiss", "back", "close the help", "help", 68),
    Key("help.leave_too", "q,question_mark", "dismiss", "", "close the help", "help"),
    Key("palette.leave", "escape", "escape", "back", "close the command palette", "palette", 68),
    Key("teams.create", "+", "create", "new team", "create a team and show it", "teams", 30, changes=True),
    Key("teams.delete", "delete", "delete", "delete", "end the agents of the selected team; asks for its name",
        "teams", 32, changes=True),
    Key("teams.leave", "escape", "dismiss", "stay", "stay with this team", "teams", 68),
    Key("teams.leave_too", "q,t", "dismiss", "", "stay with this team", "teams"),
)  # fmt: skip

Pressed = Callable[[str], str]
"""A function that returns how the key with an id is pressed, in the form for the screen."""

BY_ID = {key.id: key for key in KEYS}

KEYS_OF_NEED: dict[str, tuple[tuple[str, str], ...]] = {
    "death": (("agent.resume", "resume"), ("agent.acknowledge", "seen")),
    "plan": (("agent.answer", "review"),),
    "permission": (("agent.answer", "answer"),),
    "question": (("agent.answer", "answer"),),
    "review": (("agent.answer", "review"),),
    "stuck": (("agent.interrupt", "interrupt"), ("agent.stop", "stop")),
    "looping": (("agent.interrupt", "interrupt"), ("agent.stop", "stop")),
    "failed_start": (("agent.resume", "resume"),),
    "no_host": (("agent.stop", "stop"),),
    "failed": (("agent.resume", "retry"), ("agent.acknowledge", "seen")),
    "limit": (("agent.limit", "raise limit"), ("agent.acknowledge", "seen")),
    "refusal": (("agent.resume", "other model"), ("agent.acknowledge", "seen")),
    "collision": (
        ("list.open", "look"),
        ("agent.message", "msg"),
        ("agent.pause", "pause"),
        ("agent.acknowledge", "seen"),
    ),
    "outage": (("agent.acknowledge", "seen"),),
    "damaged": (("agent.acknowledge", "seen"),),
    "task_failed": (
        ("agent.resume", "retry"),
        ("agent.answer", "assign"),
        ("task.reopen", "reopen"),
        ("agent.acknowledge", "seen"),
    ),
    "check_failed": (("agent.message", "msg"), ("agent.answer", "assign"), ("agent.acknowledge", "seen")),
    "mcp": (("agent.message", "msg"), ("agent.acknowledge", "seen")),
    "result": (("list.open", "read"), ("agent.acknowledge", "seen")),
}
"""The keys that answer each kind of need in Needs-you, by id, with their labels there.

`limit` and `refusal` are for needs that were made by a limit, or by a model that refused.
"""

KEY_NAMES = {
    "enter": "⏎", "escape": "Esc", "space": "Space", "down": "↓", "up": "↑", "pagedown": "PgDn", "pageup": "PgUp",
    "home": "Home", "end": "End", "delete": "Del", "tab": "Tab", "shift+tab": "S-Tab",
}  # fmt: skip


def bindings_of(*scopes: str) -> list[Binding]:
    """Return the bindings of the keys in some scopes, for a screen or widget.

    Keys that run an action of a screen are left out: the screen adds these itself.
    """
    return [key.binding for key in KEYS if key.scope in scopes and key.keys and key.action]


def command_name(key: Key) -> str:
    """Return the name of a key's command: its label, else its id."""
    return key.label or key.id.partition(".")[2].replace("_", " ")


def palette_commands() -> list[Key]:
    """Return the commands that only the palette offers."""
    return [key for key in KEYS if not key.keys]


def show_key(name: str, *, ascii_only: bool = False) -> str:
    """Format a key for the screen: `^s` for `ctrl+s`. With `ascii_only`, a key whose sign is not ASCII is named."""
    if name.startswith("ctrl+"):
        return "^" + name.removeprefix("ctrl+")
    shown = KEY_NAMES.get(name) or format_key(name)
    return name.capitalize() if ascii_only and not shown.isascii() else shown


def default_key(ident: str) -> str:
    """Return how the key `ident` is pressed by default."""
    return show_key(BY_ID[ident].keys.split(",")[0])


def known_keys(ids: Iterable[str | None]) -> list[Key]:
    """Return the keys with these ids, each once, in the order of the table."""
    wanted = set(ids)
    return [key for key in KEYS if key.id in wanted]
