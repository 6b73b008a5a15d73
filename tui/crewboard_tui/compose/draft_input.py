"""The input for drafts: several lines, completion with Tab, the texts sent before, `^e` for the user's editor."""

import itertools
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar, Self
from urllib.parse import unquote

from msgspec import Struct
from textual import events
from textual.app import App, SuspendNotSupported
from textual.binding import BindingType
from textual.document._document import EditResult
from textual.document._edit import Edit
from textual.geometry import Offset
from textual.keys import REPLACED_KEYS
from textual.message import Message
from textual.widgets import TextArea

from crewboard import CrewboardError, StorageError, UsageError, media, redaction
from crewboard.unix import programs
from crewboard_tui.compose.parser import ATTACHMENT
from crewboard_tui.context import AppContext
from crewboard_tui.drafts import SentTexts
from crewboard_tui.keymap.bindings import bindings_of

NOT_SENT = "Not sent: this request was already answered"
"""The title of a text that can no longer be sent."""


def complete(text: str, names: Sequence[str]) -> str:
    """Return `text` extended by the common prefix of all `names` that start with it."""
    found = fitting(text, names)
    shared = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*found, strict=False))
    return "".join(letters[0] for letters in shared) or text


def fitting(text: str, names: Sequence[str]) -> list[str]:
    """Return the names that start with `text`."""
    return [name for name in names if name.startswith(text)]


def clean(text: str, *, one_line: bool = False) -> str:
    """Replace control characters with spaces, except tabs and, unless `one_line` is set, line breaks."""
    kept = "\t" if one_line else "\n\t"
    broken = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(character if character.isprintable() or character in kept else " " for character in broken)


_LISTED_FOR = 3.0
"""Seconds that the content of a folder is remembered while a path is typed."""

_IGNORE_FILE = 64 * 1024
"""Bytes of a .gitignore that are read."""

_SKIPPED = frozenset({".crewboard", ".git", ".hg", ".svn", "__pycache__", "node_modules"})

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Rule(Struct, frozen=True):
    """One pattern of the .gitignore in the folder `base`, which is empty or ends with a slash."""

    base: str
    pattern: str
    negated: bool
    folders_only: bool

    def matches(self, path: str, *, is_folder: bool) -> bool:
        below = path.removeprefix(self.base)
        name = below if "/" in self.pattern else below.rpartition("/")[2]
        return (is_folder or not self.folders_only) and fnmatchcase(name, self.pattern.removeprefix("/"))


class WorkspacePaths:
    """Lists the paths of a workspace, one folder at a time, so that a large tree costs no more than a small one.

    Symbolic links are neither listed nor followed. Paths that match simple patterns of .gitignore files are left out.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._listed: dict[str, tuple[float, list[str]]] = {}

    def starting_with(self, begun: str) -> list[str]:
        """Return the paths that start with `begun`; folders end with a slash. Hidden names need a dot in `begun`."""
        folder = begun[: begun.rfind("/") + 1]
        at, paths = self._listed.get(folder, (0.0, []))
        if monotonic() - at > _LISTED_FOR:
            paths = self._list(folder)
            self._listed = {folder: (monotonic(), paths)}
        hidden = f"{folder}."
        return [path for path in fitting(begun, paths) if begun.startswith(hidden) or not path.startswith(hidden)]

    def _list(self, folder: str) -> list[str]:
        steps = folder.split("/")[:-1]
        if any(step in ("", ".", "..") for step in steps):
            return []
        rules: list[_Rule] = []
        paths: list[str] = []
        with suppress(OSError), _opened(self._root, steps, rules) as fd, os.scandir(fd) as entries:
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                path = folder + entry.name
                # A name with a space would end the word that is being completed.
                usable = entry.name.isprintable() and not any(map(str.isspace, entry.name))
                known = is_folder or entry.is_file(follow_symlinks=False)
                if not usable or not known or entry.name in _SKIPPED:
                    continue
                matching = [rule for rule in rules if rule.matches(path, is_folder=is_folder)]
                # The last rule that matches decides.
                if not matching or matching[-1].negated:
                    paths.append(path + "/" * is_folder)
        return sorted(paths)


@contextmanager
def _opened(root: Path, steps: Sequence[str], rules: list[_Rule]) -> Iterator[int]:
    """Open a folder below `root` without following links, and add the rules that apply in it to `rules`."""
    fd = os.open(root, _FOLDER)
    try:
        rules += _read_rules(fd, "")
        for at, step in enumerate(steps, 1):
            inner = os.open(step, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = inner
            rules += _read_rules(fd, "".join(f"{each}/" for each in steps[:at]))
        yield fd
    finally:
        os.close(fd)


def _read_rules(folder: int, base: str) -> list[_Rule]:
    try:
        # Without O_NONBLOCK, a pipe of this name would block the dashboard.
        fd = os.open(".gitignore", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return []
    try:
        lines = os.read(fd, _IGNORE_FILE).decode(errors="replace").splitlines()
    except OSError:
        return []
    finally:
        os.close(fd)
    rules = []
    for line in map(str.rstrip, lines):
        pattern = line.removeprefix("!").removeprefix("**/").removesuffix("/**")
        if pattern and not pattern.startswith("#"):
            rules.append(_Rule(base, pattern.removesuffix("/"), line.startswith("!"), pattern.endswith("/")))
    return rules


class Prose(Struct, frozen=True):
    """The data for writing a text to agents: the paths that it can name, and the texts sent before."""

    paths: WorkspacePaths
    sent: SentTexts

    @classmethod
    def of(cls, context: AppContext) -> Self:
        """Return the paths and sent texts of the team."""
        return cls(WorkspacePaths(context.team.directory.root), context.sent)


_ATTACHED = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf")


_WORD_TOLD = 30
"""The most characters of a word that is quoted when nothing begins with it."""


_MOST_DROPPED = 20
"""The most files that one drop attaches."""

_LONGEST_PATH = 4096


def attach_dropped(pasted: str) -> tuple[str, str]:
    """Replace paths of dropped images and PDFs by marks that attach them; another pasted text stays as it is.

    Return the text, and why paths of files stay text, or an empty reason.
    """
    if len(pasted) > _MOST_DROPPED * _LONGEST_PATH:
        return pasted, ""
    try:
        words = shlex.split(pasted)
    except ValueError:
        return pasted, ""
    paths = [Path(unquote(word.removeprefix("file://")) if word.startswith("file://") else word) for word in words]
    if not 0 < len(paths) <= _MOST_DROPPED or not all(path.is_absolute() for path in paths):
        return pasted, ""
    reasons = [_why_no_mark(path) for path in paths]
    if None in reasons:
        return pasted, ""
    if why := next(filter(None, reasons), ""):
        return pasted, f"stays text: {why}"
    return " ".join(f"[attach {path}]" for path in paths), ""


def _why_no_mark(path: Path) -> str | None:
    """Return why a dropped file cannot be attached, empty if it can be; None if the path is not meant as a file."""
    name = clean(path.name, one_line=True) or "/"
    try:
        if not path.exists():
            return f"there is no file {name}" if path.suffix.lower() in _ATTACHED else None
        if not path.is_file():
            return f"{name} is no file"
        with path.open("rb") as file:
            kind = media.type_of(file.read(16))
    except PermissionError:
        return f"{name} may not be read"
    except (OSError, ValueError):
        return None
    if kind is None:
        return f"{name} is no image or PDF by its content"
    return f"the path of {name} has a ] or a line break" if ATTACHMENT.fullmatch(f"[attach {path}]") is None else ""


class Editor(TextArea):
    """A text area of which the cursor stays in sight, and whose edits can all be taken back."""

    _had = 0
    """The height before the last resize."""

    def scroll_cursor_visible(self, center: bool = False, animate: bool = False) -> Offset:  # noqa: FBT001, FBT002
        # Textual asks for it in the middle of an undo or a redo, once the text is shorter and the cursor is not yet in
        # it: where the scrollbar goes by that, it would look for a line that is gone.
        row, _ = self.cursor_location
        return super().scroll_cursor_visible(center, animate) if row < self.document.line_count else Offset()

    def on_resize(self, event: events.Resize) -> None:
        """Keep the cursor in sight if it was, as the terminal shrinks."""
        had, self._had = self._had, event.size.height
        place = self.wrapped_document.location_to_offset(self.cursor_location)
        if self.has_focus and place.y - self.scroll_offset.y in range(had):
            self.call_after_refresh(self.scroll_cursor_visible)


class DraftInput(Editor):
    """An input whose text may start with one of `names`.

    With `prose`, the text may have several lines; the input grows with them. `keep` is called with the text on each
    change, `refuse` with the reason if a completion or the editor failed. Without `sends`, the parent handles Enter.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("draft", "text")]

    class Submitted(Message):
        """Sent with the text when Enter is pressed."""

        def __init__(self, draft: "DraftInput", text: str) -> None:
            super().__init__()
            self.draft = draft
            self.text = text

        @property
        def control(self) -> "DraftInput":
            return self.draft

    def __init__(self, text: str = "", names: Sequence[str] = (), *, prose: Prose | None = None, **kwargs: Any) -> None:
        self.keep: Callable[[str], object] = lambda _: None
        self.refuse: Callable[[str], object] = lambda _: None
        self.sends = True
        self.names = names
        self.prose = prose
        self.note = ""
        """Why what was pasted last is another text, or no attached file; empty once something else is written."""
        self._recalled: int | None = None
        """The place of the sent text that is shown, counted from the newest, which is 0; None if none is shown."""
        self._unsent = ""
        """The text that was being written before a sent text was shown."""
        super().__init__(clean(text, one_line=prose is None), highlight_cursor_line=False, **kwargs)
        # With `compact`, Textual computes its styles now, and again when it is mounted.
        self.set_reactive(TextArea.compact, True)  # noqa: FBT003
        self.add_class("-textual-compact", update=False)
        for key in ("f6", "f7"):
            # TextArea uses them to select text; here the user may bind them.
            self._bindings.key_to_bindings.pop(key, None)
        self._told = self.text
        self.move_cursor(self.document.end)

    def load(self, text: str) -> None:
        """Show a text that is already stored: `keep` is not called."""
        self._recalled = None
        self._told = clean(text, one_line=self.prose is None)
        self.note = ""
        self.load_text(self._told)
        self.move_cursor(self.document.end)

    def write(self, text: str) -> None:
        """Replace the text, as if it was typed: `keep` is called."""
        self.load_text(clean(text, one_line=self.prose is None))
        self.move_cursor(self.document.end)
        self._tell()

    def add(self, text: str) -> None:
        """Insert a text at the cursor, as if it was typed."""
        self._replace_via_keyboard(clean(text, one_line=self.prose is None), *self.selection)

    def edit(self, edit: Edit) -> EditResult:
        result = super().edit(edit)
        self._tell()
        return result

    def undo(self) -> None:
        super().undo()
        self._tell()

    def redo(self) -> None:
        super().redo()
        self._tell()

    def _tell(self) -> None:
        """Call `keep` if the text has changed: directly, because a message would arrive after the draft is closed."""
        if self.text != self._told:
            self._told = self.text
            self.note = ""
            self.keep(self.text)

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            # A binding of this input or of its parent, not a new line.
            event.prevent_default()
        elif self._is_key_of("newline", event.key):
            # Directly: a binding would run after the characters that were typed next.
            event.prevent_default()
            event.stop()
            if self.prose is not None:
                self.action_newline()
        elif self.text and self._is_key_of("complete", event.key):
            # It leaves only an empty line: the letters that are typed next would be keys of the pane behind.
            event.prevent_default()
            event.stop()
            self.action_complete()

    def _is_key_of(self, action: str, key: str) -> bool:
        return any(each.action == action for each in self._bindings.key_to_bindings.get(key, ()))

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        # A terminal pastes the path of a file that is dropped on it.
        text, why = attach_dropped(event.text) if self.prose is not None else (event.text, "")
        self.add(text)
        if self.prose is None and "\n" in clean(text).strip():
            why = "Line breaks became blanks"
        self.note = why

    def check_consume_key(self, key: str, character: str | None = None) -> bool:
        # Textual names `/`, `@` and `+` by short names without a character; accept them as text too.
        return super().check_consume_key(key, character) or key in REPLACED_KEYS

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "complete":
            word, found = self._completions()
            # If several are possible, Tab keeps the focus here: the hint shows them.
            works = complete(word, found) != word or (self.prose is not None and len(found) > 1)
            # None, not False: beside a text the footer offers no other key of this name.
            return works or (None if self.text else False)
        if action in ("edit", "newline"):
            return self.prose is not None
        if action == "submit":
            return self.sends
        return super().check_action(action, parameters)

    # ------------------------------------------------------------------------------------------------ completion

    def _completions(self) -> tuple[str, list[str]]:
        """Return the word before the cursor, and what it can be completed to: names of agents, paths, commands."""
        row, column = self.cursor_location
        begun = self.document.get_line(row)[:column]
        if self.prose is None:
            return begun, fitting(begun, self.names)
        # A command with its argument, such as `/inbox api`, once the command is written.
        whole = [name for name in self.names if " " in name.rstrip()]
        if row == 0 and " " in begun and (found := fitting(begun, whole)):
            return begun, found
        word = begun[max(begun.rfind(blank) for blank in " \t") + 1 :]
        if not word:
            return "", []
        is_first = row == 0 and word == begun
        # Only at the start does a name address an agent, and a slash begin a command.
        words = [name for name in self.names if name not in whole]
        found = fitting(word, words if is_first else [name.rstrip() for name in words if name[0] == "@"])
        if word.startswith("@"):
            found += [f"@{path}" for path in self.prose.paths.starting_with(word[1:])]
        return word, found

    @property
    def completions(self) -> list[str]:
        """Return what the word before the cursor can be completed to; nothing if it is complete."""
        word, found = self._completions()
        return [] if found == [word] else found

    def action_complete(self) -> None:
        """Complete the word before the cursor, or say that nothing fits; the hint shows several possibilities."""
        word, found = self._completions()
        if added := complete(word, found)[len(word) :]:
            self.add(added)
        elif word and not found:
            self.refuse(f"Nothing begins with {word}" if len(word) <= _WORD_TOLD else "Nothing begins like that")
        elif len(found) <= 1:
            self.refuse("Nothing to complete")

    # --------------------------------------------------------------------------------------- the texts sent before

    def action_older(self) -> None:
        """Go up a line; at the first one, show the text that was sent before."""
        at = 0 if self._recalled is None else self._recalled + 1
        if not self.navigator.is_first_wrapped_line(self.cursor_location):
            self.action_cursor_up()
        elif self.prose is not None and at < len(self.prose.sent.texts):
            if not self._is_recalled:
                at, self._unsent = 0, self.text
            self._recall(at)

    def action_newer(self) -> None:
        """Go down a line; at the last one, show the text that was sent next, or finally the unsent text."""
        if not self.navigator.is_last_wrapped_line(self.cursor_location):
            self.action_cursor_down()
        elif self._is_recalled and self._recalled is not None:
            self._recall(self._recalled - 1)

    @property
    def _is_recalled(self) -> bool:
        """Return True if a text sent before is shown unchanged."""
        return (
            self.prose is not None
            and self._recalled is not None
            and self.prose.sent.texts[-1 - self._recalled :][:1] == [self.text]
        )

    def _recall(self, at: int) -> None:
        sent = self.prose.sent.texts if self.prose is not None else []
        self.write(self._unsent if at < 0 else sent[-1 - at])
        self._recalled = at if at >= 0 else None
        if at >= 0:
            self.move_cursor((0, len(self.document.get_line(0))))

    def leave(self) -> None:
        """If a sent text is shown, unchanged, show the unsent text again."""
        if self._is_recalled:
            self._recall(-1)

    # ------------------------------------------------------------------------------------------------------ keys

    def action_submit(self) -> None:
        if self.prose is not None and self.text.strip():
            self.prose.sent.add(self.text)
        self._recalled = None
        self.post_message(self.Submitted(self, self.text))

    def action_newline(self) -> None:
        self.add("\n")

    def action_edit(self) -> None:
        try:
            self.write(edit_in_editor(self.app, self.text))
        except CrewboardError as error:
            self.refuse(str(error))


def editor_command() -> list[str]:
    """Return the words of `$VISUAL`, else of `$EDITOR`, else `vi`.

    Raises:
        UsageError: The variable is not a valid command line.
    """
    given = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        return shlex.split(given)
    except ValueError as error:
        raise UsageError(f"$VISUAL or $EDITOR is not a command: {error}") from error


def edit_in_editor(app: App[Any], text: str) -> str:
    """Edit `text` and return the result. The temporary file is private and removed afterwards.

    Raises:
        UsageError: There is no such editor, or it failed; the text is unchanged.
        StorageError: The file could not be written or read.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="crewboard-", ignore_cleanup_errors=True) as folder:
            path = Path(folder, "message.md")
            path.touch(mode=0o600)
            path.write_text(text, encoding="utf-8")
            words = [*editor_command(), str(path)]
            program = programs.find_user_program(words[0])
            if program is None and shutil.which(words[0]):
                raise UsageError(
                    f"the editor {words[0]!r} is in a workspace, where agents can change it: set $VISUAL or $EDITOR"
                )
            if program is None:
                raise UsageError(f"there is no editor {words[0]!r}: set $VISUAL or $EDITOR")
            # Without credentials; programs of a workspace are not found by their name.
            kept = {name: value for name, value in os.environ.items() if not redaction.is_secret(name)}
            environment = {**kept, "PATH": programs.path_outside_workspaces()}
            try:
                with app.suspend():
                    code = subprocess.run([str(program), *words[1:]], env=environment, check=False).returncode
            except SuspendNotSupported as error:
                raise UsageError("an editor cannot run in this terminal") from error
            if code:
                raise UsageError(f"{words[0]} ended with {code}; the draft is unchanged")
            return path.read_text(encoding="utf-8", errors="replace").rstrip("\n")
    except OSError as error:
        raise StorageError(f"the draft could not be edited: {error}") from error
