"""The files that file tools may use, opened so that no symbolic link, pipe or device can lead outside or block.

A path is checked first, for a good error message. Then it is opened from the root's own descriptor, folder by folder,
never through a link, so that replacing a folder with a link between the two steps has no effect. Apart from modules of
crewboard, only the standard library is imported, because the file-tool server uses this, and of that not `dataclasses`,
which takes 12 ms of processor time.
"""

import contextlib
import errno
import fnmatch
import os
import re
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from crewboard.media import type_of as media_type

MAX_FILE = 10 * 1024 * 1024
"""The most bytes of a file that is read."""

MAX_DEPTH = 64
"""The most levels of folders that a search descends."""

MAX_SEARCHED = 200_000
"""The most entries of folders that are looked at to find the names of a file with hard links."""

MAX_FOLDERS = 500
"""The most folders that are open at a time while names of a file are looked for. Others are not searched, so that names
in them count as outside the workspace."""

CLOCK_STEP = 0.02
"""Seconds within which two changes of a file may get the same change time."""

MAX_SUGGESTED = 5_000
"""The most names that are compared with a name that does not exist, for a suggestion."""

GITIGNORE = ".gitignore"

MAX_IGNORE_FILE = 256 * 1024
"""Bytes of a `.gitignore` file that are read."""

MAX_IGNORE_RULES = 1000
"""Lines of a `.gitignore` file that are used."""

HIDDEN = ".crewboard"
SKIPPED = frozenset(
    {HIDDEN, ".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", ".mypy_cache", ".ruff_cache"}
)
"""Folders that searches skip. Files in all of them but `.crewboard` can still be read by name."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


_UNDECODABLE = re.compile("[\udc80-\udcff]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile(r"\\x([89a-f][0-9a-f])")
_ESCAPE_OR_SET = re.compile(r"\\.|\[[!^]?\]?[^]]*\]")
_SPACES_AT_END = re.compile(r"(?<![\\ ])((?:\\\\)*(?:\\ )?) +$")
"""Spaces that a line of a `.gitignore` file ends in, but for one behind a backslash that is no escaped one."""


class RefusedError(Exception):
    """A call of a file tool is refused; the text says why."""


class PartlyWrittenError(RefusedError):
    """Only a part of a file's new text was written."""


class MissingError(RefusedError):
    """A call of a file tool names a `place` that does not exist."""

    def __init__(self, place: "Place") -> None:
        super().__init__(f"there is no file {place.given}")
        self.place = place


def escape_name(name: str) -> str:
    r"""Return a file name with each byte that is not UTF-8 shown as `\xff`: JSON cannot hold it as it is."""
    return _UNDECODABLE.sub(lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", name)


def unescape_name(shown: str) -> str:
    """Return the file name that `escape_name` returns as `shown`."""
    return _ESCAPED.sub(lambda found: chr(0xDC00 + int(found[1], 16)), shown)


class Limits(NamedTuple):
    """The limits of an agent's file tools. A real path in them stands for everything below it, too."""

    protected: Sequence[str] = ()
    """Real paths that must not be written: git outside the sandbox uses them, or they are the project's file."""
    hidden: Sequence[str] = ()
    """Real paths that must not be used at all: credentials, and private entries of a home."""
    allow_hardlinks: bool = False
    """True if files may be read that have, or may have, another name outside the workspace."""
    landlock: bool = False
    """True if Landlock holds the file tools, so that they can make nothing in a folder with something hidden."""


class Place(NamedTuple):
    """The place of a file or folder, which need not exist: the `steps` to it from the open folder `base`.

    `given` is the path as it stands in the call.
    """

    given: str
    base: int
    steps: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the path of the place from its base, usually the root, as tools show it."""
        return escape_name("/".join(self.steps)) or "."

    @property
    def key(self) -> tuple[int, tuple[str, ...]]:
        """Return base and steps, which identify the place."""
        return self.base, self.steps


class Change(NamedTuple):
    """A change of a file that was checked, and is not made yet.

    `state` is `Workspace.state` before the check, `data` the new content, and `said` the text for the model once the
    change is made.
    """

    place: Place
    state: tuple[int, int, int] | None
    data: bytes
    said: str
    created: bool = False


class Found(NamedTuple):
    """A file that a search found: its open folder, its name there, and its path from the folder that was searched."""

    folder: int
    name: str
    path: str


class _Rule(NamedTuple):
    """A line of a `.gitignore` file in the folder with these `steps` from the root."""

    steps: tuple[str, ...]
    pattern: tuple[str, ...]
    negated: bool
    folders_only: bool


class IgnoreRules(NamedTuple):
    """The rules of `.gitignore` files for paths below the folder `top`; the last rule that matches decides.

    `top` is a path from the root that ends in a slash, or empty for the root.
    """

    top: str
    rules: tuple[_Rule, ...] = ()

    def with_text(self, text: str, steps: tuple[str, ...]) -> "IgnoreRules":
        """Return these rules with those in the `text` of a `.gitignore` file, whose folder is at these `steps`."""
        rules = list(self.rules)
        for each in text.split("\n")[:MAX_IGNORE_RULES]:
            line = _SPACES_AT_END.sub(r"\1", each.removesuffix("\r"))
            negated, pattern = line.startswith("!"), line.removeprefix("!")
            if not pattern.strip("/") or line.startswith("#"):
                continue
            parts = tuple(_ESCAPE_OR_SET.sub(_as_fnmatch, step) for step in pattern.strip("/").split("/"))
            is_anchored = "/" in pattern.rstrip("/")
            wanted = parts if is_anchored else ("**", *parts)
            rules.append(_Rule(steps, wanted, negated, pattern.endswith("/")))
        return self._replace(rules=tuple(rules))

    def match(self, path: str, *, is_folder: bool) -> bool:
        """Return True if a path below `top` is ignored."""
        steps = tuple(f"{self.top}{path}".split("/"))
        for rule in reversed(self.rules):
            if (is_folder or not rule.folders_only) and match_steps(rule.pattern, steps[len(rule.steps) :]):
                return not rule.negated
        return False


def _as_fnmatch(found: re.Match[str]) -> str:
    """Return an escape or a set in a pattern of git as `fnmatch` takes it, which knows no backslash and no `[^`."""
    part = found[0]
    if part.startswith("["):
        return f"[!{part[2:]}" if part[1] == "^" else part
    return f"[{part[1]}]" if part[1] in "*?[" else part[1]


def match_steps(pattern: tuple[str, ...], steps: tuple[str, ...]) -> bool:
    """Return True if the steps of a path match those of a pattern, where `**` stands for any folders.

    At the end of a pattern, `**` stands for what is in a folder, but not for the folder.
    """
    # The numbers of steps that the pattern so far can match: one pass, however many `**` there are.
    ends = {0}
    for place, part in enumerate(pattern, start=1):
        if part == "**" and ends:
            ends = set(range(min(ends) + (place == len(pattern)), len(steps) + 1))
        else:
            ends = {end + 1 for end in ends if end < len(steps) and fnmatch.fnmatchcase(steps[end], part)}
    return len(steps) in ends


class Workspace:
    """The files of a workspace, without `.crewboard`, of which only results can be read.

    The root of the workspace is `folder` below the path `root`, which must exist; `folder` is made if it is missing.
    `results` is the team's folder of results. `limits` are those of the call in progress, `planned` is the change that
    the next call may make.
    """

    def __init__(self, root: Path, results: Path, folder: str = "") -> None:
        self.root = Path(os.path.realpath(root)) / folder
        # Not resolved, because a symbolic link in its place must not be followed.
        self.results = Path(results)
        self.limits = Limits()
        self.planned: Change | None = None
        self.left_out: list[str] = []
        """The paths that the last walk left out because of `.gitignore` files, from where it began."""
        self.unread: list[str] = []
        """The folders that the last walk could not read, as paths from where it began."""
        self._base = os.open(os.path.realpath(root), _FOLDER)
        # Below the root, never through a link.
        for step in Path(folder).parts:
            try:
                with contextlib.suppress(OSError):
                    os.mkdir(step, dir_fd=self._base)
                deeper = os.open(step, _FOLDER, dir_fd=self._base)
            finally:
                os.close(self._base)
            self._base = deeper
        self._results: int | None = None
        self._seen: dict[tuple[int, tuple[str, ...]], tuple[int, int, int]] = {}

    def resolve(self, given: str, *, results: bool = False) -> Place:
        """Return the place that the path `given` names, with links resolved. It need not exist.

        With `results`, the path may name one of the team's results, too.

        Raises:
            RefusedError: The path is not valid, outside the workspace, hidden, or among the team's own files.
        """
        if "\0" in given:
            raise RefusedError("a path cannot contain a NUL byte")
        if _LONE_SURROGATE.search(given):
            raise RefusedError("a path cannot contain half of a surrogate pair")
        if ".." in Path(given).parts:
            inside = os.path.normpath(self.root / given)
            meant = f", here {os.path.relpath(inside, self.root)}" if Path(inside).is_relative_to(self.root) else ""
            raise RefusedError(f"{given}: paths with .. are not allowed; use a path from the workspace's root{meant}")
        # Mail names results by paths from the team's root.
        parts, folder = Path(given).parts, self.results.parts[-3:]
        found = self.results.joinpath(*parts[3:]) if parts[:3] == folder else self._unescaped(given)
        real = Path(os.path.realpath(found))
        if results and real.is_relative_to(self.results):
            if self._results is None:
                try:
                    self._results = os.open(self.results, _FOLDER)
                except OSError:
                    raise RefusedError("there are no results yet") from None
            return Place(given, self._results, real.relative_to(self.results).parts)
        if not real.is_relative_to(self.root):
            # The longest end of the path that exists inside.
            names = [part for part in Path(given).parts if part != "/"]
            ends = (Path(*names[start:]) for start in range(1, len(names)))
            same = next((end for end in ends if HIDDEN not in end.parts and os.path.lexists(self.root / end)), None)
            hint = f"did you mean {same}?" if same else "give a path from its root, such as src/main.py"
            raise RefusedError(f"{given} is outside the workspace {self.root}; {hint}")
        steps = real.relative_to(self.root).parts
        if _is_in(real, self.limits.hidden):
            raise RefusedError(f"{given} holds credentials or private settings of the user")
        # A worktree is itself in the folder of the team.
        named = Path(given).relative_to(self.root) if Path(given).is_relative_to(self.root) else Path(given)
        if HIDDEN in (*steps, *named.parts):
            raise RefusedError(f"{given} belongs to the team's own files")
        return Place(given, self._base, steps)

    def _unescaped(self, given: str) -> Path:
        """Return the path `given` below the root, with `unescape_name` applied to names that exist only so."""
        path = self.root
        for part in Path(given).parts:
            literal, unescaped = path / part, path / unescape_name(part)
            path = unescaped if not os.path.lexists(literal) and os.path.lexists(unescaped) else literal
        return path

    def suggestion(self, place: Place) -> str:
        """Return a hint for a path that does not exist: similar names in its folder, or its name elsewhere.

        It is empty if there is nothing to say.
        """
        from difflib import get_close_matches

        if place.base != self._base or not place.steps:
            return ""
        known = 0
        while known < len(place.steps) and self.stat(place._replace(steps=place.steps[: known + 1])) is not None:
            known += 1
        folder, missing = place._replace(steps=place.steps[:known]), place.steps[known : known + 1]
        try:
            with self.open_folder(folder) as fd, os.scandir(fd) as listing:
                names = [
                    entry.name for _, entry in zip(range(MAX_SUGGESTED), listing, strict=False) if entry.name != HIDDEN
                ]
        except (OSError, RefusedError):
            return ""
        by_case = {name.casefold(): name for name in sorted(names)}
        like = [by_case[each] for each in get_close_matches(missing[0].casefold() if missing else "", by_case)]
        found = ["/".join((*folder.steps, each, *place.steps[known + 1 :])) for each in like]
        found = [each for each in found if os.path.lexists(self.root / each)] or (
            [] if known + 1 < len(place.steps) else ["/".join((*folder.steps, each)) for each in like]
        )
        if not found:
            # The name may be right, and the folder wrong.
            files = zip(range(MAX_SUGGESTED), self.walk(Place("", self._base, ())), strict=False)
            found = [each.path for _, each in files if each.name == place.steps[-1]][:3]
        real = [self.root / each for each in found]
        shown = [escape_name(str(each.relative_to(self.root))) for each in real if not _is_in(each, self.limits.hidden)]
        return f"; did you mean {' or '.join(shown)}?" if shown else f"; list_dir {folder.name} shows what is there"

    def check_writable(self, place: Place) -> None:
        """Refuse files that agents must not write.

        Raises:
            RefusedError: The file belongs to git or to the programs that run crewboard, is the project's file, or is
                reached through a link: rules and plans are compared with the path in the call.
        """
        real = self.root.joinpath(*place.steps)
        if self._unescaped(os.path.normpath(place.given)) != real:
            raise RefusedError(f"{place.given} is reached through a symbolic link; use its real path, {place.name}")
        if ".git" in place.steps:
            raise RefusedError(f"{place.given} belongs to git; change it with git itself")
        if _is_in(real, self.limits.protected):
            used = "used outside the sandbox, by git or as the project's file"
            raise RefusedError(f"{place.given} is {used}, so it is read-only")
        if place.steps[-1:] == ("HEAD",):
            raise RefusedError(f"{place.given} would make its folder a repository; choose another name")
        if real.is_relative_to(sys.prefix):
            raise RefusedError(f"{place.given} belongs to the programs that run this team")

    def folder(self, place: Place, made: list[tuple[str, ...]] | None = None) -> "AbstractContextManager[int]":
        """Open the folder that contains a place, for a `with` block.

        If `made` is given, create missing folders on the way, and add to it the steps to each of them.

        Raises:
            RefusedError: A folder on the way does not exist, or is no folder.
        """
        return self._walked(place, place.steps[:-1], made)

    def open_folder(self, place: Place) -> "AbstractContextManager[int]":
        """Open a place that is a folder, for a `with` block.

        Raises:
            RefusedError: The place does not exist, or is no folder.
        """
        return self._walked(place, place.steps)

    @contextmanager
    def _walked(self, place: Place, steps: tuple[str, ...], made: list[tuple[str, ...]] | None = None) -> Iterator[int]:
        fd = os.dup(place.base)
        try:
            for level, step in enumerate(steps, 1):
                try:
                    if made is not None:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(step, dir_fd=fd)
                            made.append(steps[:level])
                    deeper = os.open(step, _FOLDER, dir_fd=fd)
                except FileNotFoundError:
                    raise MissingError(place) from None
                except OSError as error:
                    if error.errno in (errno.ENOTDIR, errno.ELOOP):
                        raise RefusedError(f"{place.given}: {escape_name(step)} is not a directory") from None
                    raise
                os.close(fd)
                fd = deeper
            yield fd
        finally:
            os.close(fd)

    def stat(self, place: Place) -> os.stat_result | None:
        """Return the metadata of a place, without following a link; None if it does not exist."""
        if not place.steps:
            return os.fstat(place.base)
        try:
            with self.folder(place) as folder:
                return os.stat(place.steps[-1], dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, RefusedError):
            return None

    def read(self, place: Place, *, media: bool = False, binary: bool = False) -> bytes:
        """Return the bytes of a regular file, and remember its state as the one that the agent has read.

        With `media`, it may be an image or a document that models take; with `binary`, any binary file.

        Raises:
            RefusedError: The file does not exist, is not a regular one, is too large or binary, or may have another
                name outside the workspace.
        """
        there = self.stat(place)
        if there is not None and stat.S_ISDIR(there.st_mode):
            advice = "use list_dir" if place.base == self._base else "read one of its files, by the path in a message"
            raise RefusedError(f"{place.given} is a directory; {advice}")
        try:
            with self.folder(place) as folder, _regular(folder, place.steps[-1], place.given) as fd:
                found = os.fstat(fd)
                if self._is_linked_outside(fd, folder, place.steps[-1]):
                    raise RefusedError(
                        f"{place.given} may have another name outside the workspace (a hard link); "
                        "only an agent hired with --allow-hardlinks reads it"
                    )
                if found.st_size > MAX_FILE:
                    raise RefusedError(
                        f"{place.given} has {found.st_size} bytes; the limit is {MAX_FILE}; where you have bash, read "
                        "a part of it with sed -n 1,200p"
                    )
                data = _read_all(fd)
        except FileNotFoundError:
            raise MissingError(place) from None
        if not binary and is_binary(data) and not (media and media_type(data)):
            raise RefusedError(
                f"{place.given} is a binary file ({len(data)} bytes), which file tools do not read; where you have "
                "bash, a command such as file or strings does"
            )
        self._seen[place.key] = _state(found)
        return data

    def check_unchanged(self, place: Place) -> None:
        """Refuse to change a file that has changed since the agent read it. One that it has not read is not checked.

        Raises:
            RefusedError: The file has changed.
        """
        found = self.stat(place)
        if found is not None and place.key in self._seen and self._seen[place.key] != _state(found):
            raise RefusedError(
                f"{place.given} has changed since you read it, by a command or by another program; read it again, then "
                "repeat the call with what it contains now"
            )

    def state(self, place: Place) -> tuple[int, int, int] | None:
        """Return modification time, size and inode of a file, by which a change is noticed; None if there is none."""
        found = self.stat(place)
        return _state(found) if found is not None else None

    def read_before(self, place: Place) -> tuple[bytes | None, str]:
        """Return the content of a file that is about to be replaced, and why it cannot be kept.

        The content is None if there is no file or it cannot be kept; the reason is empty if there is none.
        """
        try:
            with self.folder(place) as folder, _regular(folder, place.steps[-1], place.given) as fd:
                if self._is_linked_outside(fd, folder, place.steps[-1]):
                    return None, "it had another name outside the workspace (a hard link)"
                if os.fstat(fd).st_size > MAX_FILE:
                    return None, f"it had more than {MAX_FILE} bytes"
                return _read_all(fd), ""
        except (FileNotFoundError, RefusedError):
            return None, ""

    def missing_folders(self, place: Place) -> int:
        """Return how many folders must be made for a new file."""
        folders = [self.root.joinpath(*place.steps[:count]) for count in range(1, len(place.steps))]
        return sum(not os.path.lexists(folder) for folder in folders)

    def write(self, place: Place, data: bytes) -> None:
        """Create or replace a file in one step. Keep its permissions, and make missing folders.

        Where landlock lets no new file be made beside it, an existing file is written in place. If that is broken off,
        the file has a part of the new content.

        Raises:
            OSError: The file cannot be written. The folders that were made are removed.
            RefusedError: A folder on the way is no folder, or nothing may be made in one that holds credentials.
            PartlyWrittenError: Only a part was written in place. After any other error the file is as it was.
        """
        made: list[tuple[str, ...]] = []
        try:
            with self.folder(place, made) as folder:
                try:
                    _replace(folder, place.steps[-1], data, place.given)
                except PermissionError as error:
                    if self._closed_folder(place, error) is None:
                        raise
                    try:
                        _overwrite(folder, place.steps[-1], data, place.given)
                    except FileNotFoundError:
                        raise error from None
                # Another program may have removed it since, which is no error of the write.
                with contextlib.suppress(OSError):
                    self._seen[place.key] = _state(os.stat(place.steps[-1], dir_fd=folder, follow_symlinks=False))
        except OSError as error:
            for steps in reversed(made):
                # One that another process already uses.
                with contextlib.suppress(OSError, RefusedError), self.folder(place._replace(steps=steps)) as parent:
                    os.rmdir(steps[-1], dir_fd=parent)
            closed = self._closed_folder(place, error)
            if closed is None or os.path.lexists(self.root.joinpath(*place.steps)):
                raise
            where = "the workspace's root" if closed == self.root else escape_name(str(closed.relative_to(self.root)))
            raise RefusedError(
                f"{place.given} cannot be written: the sandbox (landlock) lets nothing be made in {where}, because "
                "that holds credentials or private settings of the user; use a folder below it that exists, or ask the "
                "operator to move the credentials"
            ) from None

    def _closed_folder(self, place: Place, error: OSError) -> Path | None:
        """Return the folder above a place in which landlock lets nothing be made, if `error` comes from that."""
        above = [self.root.joinpath(*place.steps[:count]) for count in range(len(place.steps))]
        closed = next((each for each in reversed(above) if os.path.lexists(each)), self.root)
        # Landlock cannot leave a file out of the rights to its folder, so it gives none to the folder.
        holds_credentials = any(Path(each).is_relative_to(closed) for each in self.limits.hidden)
        is_refused = self.limits.landlock and error.errno == errno.EACCES and holds_credentials
        # Where the mode of the folder forbids it, too, the sandbox is not the reason.
        return closed if is_refused and os.access(closed, os.W_OK) else None

    def walk(self, place: Place, *, ignored: bool = True) -> Iterator[Found]:
        """Yield the regular files below a folder, by name, a folder's own files first.

        No link is followed. Left out are folders in `SKIPPED`, hidden paths, and what is below `MAX_DEPTH` levels.
        Unless `ignored`, also leave out what `.gitignore` files name, and set `left_out` to these paths, those of
        folders with a slash at the end. Set `unread` to the folders that could not be read.

        Raises:
            RefusedError: The place does not exist, or is no folder.
        """
        self.left_out, self.unread = [], []
        rules: IgnoreRules | None = None
        if not ignored:
            rules = IgnoreRules("/".join((*place.steps, "")))
            # Rules for what is below the folder are in those above it, too.
            for count in range(len(place.steps)):
                with self.open_folder(place._replace(steps=place.steps[:count])) as fd:
                    rules = _with_file(rules, fd, place.steps[:count])
        hidden = tuple(f"{path}/" for path in self.hidden_below(place))
        with self.open_folder(place) as fd:
            for found in self._walk(fd, "", MAX_DEPTH, rules):
                if not f"{found.path}/".startswith(hidden):
                    yield found

    def hidden_below(self, place: Place) -> list[str]:
        """Return the hidden paths below a folder, from there."""
        folder = self.root.joinpath(*place.steps)
        return [str(path.relative_to(folder)) for path in map(Path, self.limits.hidden) if folder in path.parents]

    def _walk(self, fd: int, prefix: str, depth: int, rules: IgnoreRules | None) -> Iterator[Found]:
        try:
            with os.scandir(fd) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError:
            if not prefix:
                raise
            self.unread.append(prefix)
            return
        if rules is not None and any(entry.name == GITIGNORE for entry in entries):
            rules = _with_file(rules, fd, tuple(filter(None, f"{rules.top}{prefix}".split("/"))))
        for entry in entries:
            if entry.is_file(follow_symlinks=False) and not self._is_ignored(rules, prefix + entry.name):
                yield Found(fd, entry.name, prefix + entry.name)
        for entry in entries:
            if not depth or entry.name in SKIPPED or not entry.is_dir(follow_symlinks=False):
                continue
            if self._is_ignored(rules, prefix + entry.name, is_folder=True):
                continue
            try:
                deeper = os.open(entry.name, _FOLDER, dir_fd=fd)
            except OSError:
                self.unread.append(f"{prefix}{entry.name}/")
                continue
            try:
                yield from self._walk(deeper, f"{prefix}{entry.name}/", depth - 1, rules)
            finally:
                os.close(deeper)

    def _is_ignored(self, rules: IgnoreRules | None, path: str, *, is_folder: bool = False) -> bool:
        """Return True if rules leave a path out of a walk, and add it to `left_out` then."""
        is_ignored = rules is not None and rules.match(path, is_folder=is_folder)
        if is_ignored:
            self.left_out.append(f"{path}/" if is_folder else path)
        return is_ignored

    def read_found(self, found: Found) -> bytes | None:
        """Return the bytes of a found file; None if it is binary, too large or unreadable, or may be linked outside."""
        try:
            with _regular(found.folder, found.name, found.path) as fd:
                is_read = os.fstat(fd).st_size <= MAX_FILE and not self._is_linked_outside(fd, found.folder, found.name)
                data = _read_all(fd) if is_read else None
        except (OSError, RefusedError):
            return None
        return None if data is None or is_binary(data) else data

    def read_below(self, place: Place, path: str) -> bytes | None:
        """Return the bytes of a file that a walk of a folder yielded with this path; None as `read_found` does."""
        *folders, name = path.split("/")
        try:
            with self.open_folder(place._replace(steps=(*place.steps, *folders))) as fd:
                return self.read_found(Found(fd, name, path))
        except (OSError, RefusedError):
            return None

    def _is_linked_outside(self, fd: int, folder: int, name: str) -> bool:
        """Return True if the open file `fd` has, or may have, another name outside the workspace, by a hard link.

        `folder` and `name` are those by which it was opened. Other processes may create, move and remove names of the
        file during the check. So this name must still be valid, and the change time must be the same after the names
        in the workspace were counted.
        """
        if self.limits.allow_hardlinks:
            return False
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return True
        if not os.path.samestat(found, os.fstat(fd)):
            return True
        if found.st_nlink == 1:
            return False
        top = os.fstat(self._base)
        if (found.st_dev, found.st_uid) != (top.st_dev, top.st_uid):
            return True
        if time.time() - found.st_ctime < CLOCK_STEP:
            # A second change could leave the same time.
            time.sleep(CLOCK_STEP)
        count = _names_below(self._base, found)
        after = os.fstat(fd)
        return after.st_ctime_ns != found.st_ctime_ns or count < after.st_nlink


def _is_in(path: Path, folders: Sequence[str]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _names_below(top: int, wanted: os.stat_result) -> int:
    """Return how many names of a file are below an open folder, within `MAX_SEARCHED` entries."""
    count, left = 0, MAX_SEARCHED
    seen: set[int] = set()
    waiting = [os.dup(top)]
    try:
        while waiting and left > 0 and count < wanted.st_nlink:
            folder = waiting.pop()
            try:
                about = os.fstat(folder)
                # A folder that was moved during the search must not count twice.
                if about.st_dev != wanted.st_dev or about.st_ino in seen:
                    continue
                seen.add(about.st_ino)
                with os.scandir(folder) as listing:
                    for entry in listing:
                        left -= 1
                        if left < 0:
                            break
                        if entry.is_dir(follow_symlinks=False):
                            if len(waiting) < MAX_FOLDERS:
                                with contextlib.suppress(OSError):
                                    waiting.append(os.open(entry.name, _FOLDER, dir_fd=folder))
                        elif entry.inode() == wanted.st_ino:
                            count += 1
            finally:
                os.close(folder)
    finally:
        for folder in waiting:
            os.close(folder)
    return count


def is_binary(data: bytes) -> bool:
    """Return True if these bytes are not text: there is a NUL byte near the beginning."""
    return b"\0" in data[:8192]


def _state(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_mtime_ns, found.st_size, found.st_ino


def _replace(folder: int, name: str, data: bytes, given: str) -> None:
    """Create or replace a file of an open folder in one step. Keep its permissions.

    Raises:
        OSError: It failed; the file is as it was. The error names the file as it was `given`.
    """
    temporary = f".{os.getpid()}.crewboard-tmp"
    try:
        # A server that was killed may have left one.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        with os.fdopen(os.open(temporary, _NEW_FILE, 0o666, dir_fd=folder), "wb") as file:
            file.write(data)
            with contextlib.suppress(FileNotFoundError):
                mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
                # Not the bits that would run it with the rights of its owner.
                os.fchmod(file.fileno(), mode & 0o777)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        error.filename = given
        raise


def _overwrite(folder: int, name: str, data: bytes, given: str) -> None:
    """Write a file of an open folder in place, if it is a regular one with no other name.

    Raises:
        RefusedError: The file is not a regular one, or has another name, which would be changed, too.
        PartlyWrittenError: Only a part of it was written.
        OSError: The file does not exist, cannot be opened, or there is no room; it is as it was.
    """
    fd = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        found = os.fstat(fd)
        _check_regular(found, given)
        if found.st_nlink > 1:
            raise RefusedError(f"{given} has another name (a hard link), which would be changed, too")
        try:
            # While the old text is still there.
            os.posix_fallocate(fd, 0, len(data))
        except OSError as error:
            # Other errors say that there is nothing to reserve, or that the file system cannot.
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
                os.ftruncate(fd, found.st_size)
                raise
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(fd, left) :]
            os.ftruncate(fd, len(data))
        except OSError as error:
            # Without the reserved room, which holds zero bytes.
            with contextlib.suppress(OSError):
                os.ftruncate(fd, max(len(data) - len(left), found.st_size))
            raise PartlyWrittenError(
                f"{given}: {error.strerror}; it now begins with a part of the new text, and may end in the old one"
            ) from None
    finally:
        os.close(fd)


@contextmanager
def _regular(folder: int, name: str, given: str) -> Iterator[int]:
    """Open a regular file for reading, for a `with` block. `given` is the path for an error.

    The type is checked before the open, too, because opening a device can have effects.

    Raises:
        RefusedError: The file is not a regular one.
        OSError: The file cannot be opened.
    """
    _check_regular(os.stat(name, dir_fd=folder, follow_symlinks=False), given)
    fd = os.open(name, _FILE, dir_fd=folder)
    try:
        _check_regular(os.fstat(fd), given)
        yield fd
    finally:
        os.close(fd)


def _check_regular(found: os.stat_result, given: str) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise RefusedError(f"{given} is a directory; use list_dir")
    if not stat.S_ISREG(found.st_mode):
        raise RefusedError(f"{given} is not a regular file")


def _read_all(fd: int) -> bytes:
    """Return the content of an open file, but at most `MAX_FILE` bytes: it may grow meanwhile."""
    with os.fdopen(os.dup(fd), "rb") as file:
        return file.read(MAX_FILE)


def _with_file(rules: IgnoreRules, folder: int, steps: tuple[str, ...]) -> IgnoreRules:
    """Return the rules with those of the `.gitignore` file of an open folder added, if it has a readable one."""
    try:
        with _regular(folder, GITIGNORE, GITIGNORE) as fd:
            text = os.read(fd, MAX_IGNORE_FILE).decode("utf-8", "replace")
            # As git, without the mark of the byte order that some editors write.
            return rules.with_text(text.removeprefix("\ufeff"), steps)
    except (OSError, RefusedError):
        return rules
