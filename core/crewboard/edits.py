"""The replacements of a call of `edit_file`: one text, several texts, or the hunks of a unified diff.

Imports only the standard library, because the file-tool server uses it. Several replacements are made in order, all or
none. Error messages say how to go on, because a model reads them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from io import StringIO
from itertools import pairwise
from typing import Any, NamedTuple

MAX_COMPARED = 20_000
"""Lines of a file that are compared with a text that was not found, to name those most like it."""

_MOST_SHOWN = 8
"""Most lines of a file, and most line numbers, that an error message shows."""

_MAX_LINE = 200
"""Most characters of each such line."""

_LIKE = 0.6
"""The similarity of two lines, from 0 to 1, above which an error message shows one in place of the other."""

NO_LINE_FEED = "\\ No line feed at its end"
"""Stands in a diff behind the last line of a text that does not end in a line feed."""

_HUNK = re.compile(r"@@(?: -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@.*| .*@@.*|[ @]*)")
_NUMBERED = re.compile(r"^ *\d+\t", re.MULTILINE)


class EditError(ValueError):
    """A replacement cannot be made; the message says why, and how to go on."""


class Replacement(NamedTuple):
    """The text `old` and the text `new` that replaces it: its only occurrence, or each one if `everywhere`.

    If `is_hunk`, it is a hunk of a diff: whole lines are replaced and, of several places, the one nearest to `line`,
    which is None if the diff names no line.
    """

    old: str
    new: str
    everywhere: bool = False
    is_hunk: bool = False
    line: int | None = None


def replacements(arguments: Mapping[str, Any]) -> list[Replacement]:
    """Return the replacements that the arguments of a call of `edit_file` ask for.

    Raises:
        EditError: The diff in the arguments cannot be read.
    """
    if diff := arguments.get("diff"):
        return parse_diff(str(diff))
    # A call as the model wrote it, as a request shows it, may hold anything.
    several = arguments.get("edits")
    pieces = [each for each in several if isinstance(each, Mapping)] if isinstance(several, list) else []
    return [
        Replacement(
            str(each.get("old_text", "")),
            str(each.get("new_text", "")),
            # As the tool's input takes a flag, also one that is written as text.
            str(each.get("replace_all")).lower() == "true",
        )
        for each in pieces or [arguments]
    ]


class Edit(NamedTuple):
    """The replacements of a call, and the text of the file before and after them.

    If each line of the file ends in CR and LF, or in CR alone (`line_end`), these texts have line feeds alone. In a
    file with mixed line ends they keep both.
    """

    pieces: list[Replacement]
    before: str
    after: str
    line_end: str


def edit(text: str, arguments: Mapping[str, Any]) -> Edit:
    """Make the replacements of a call of `edit_file` in the text of a file; return them with both texts.

    Raises:
        EditError: A replacement cannot be made.
    """
    # `read_file` shows lines without their ends. Of a file with CR alone, a model may give CR and LF.
    end = line_end(text)
    ends = re.compile("\r\n?" if end == "\r" else end)
    pieces = [
        each._replace(old=ends.sub("\n", each.old), new=ends.sub("\n", each.new)) for each in replacements(arguments)
    ]
    before = ends.sub("\n", text)
    return Edit(pieces, before, apply(before, pieces), end)


def line_end(text: str) -> str:
    """Return what ends each line of a text: CR and LF; CR, if there is no LF; else LF, maybe mixed with others."""
    if "\n" not in text and "\r" in text:
        return "\r"
    return "\r\n" if "\r\n" in text and text.count("\n") == text.count("\r\n") else "\n"


def _with_lf(text: str) -> str:
    return text.replace("\r\n", "\n")


def split_lines(text: str) -> list[str]:
    """Return the lines of a text without their ends, as the file tools, git and `grep -n` count them.

    A line ends at LF, or CR and LF; in a text without LF, at CR, because it could not be read in parts otherwise.
    `str.splitlines` takes a form feed, U+2028 and others for line ends, too.
    """
    return split_at_lf(text.replace("\r", "\n") if line_end(text) == "\r" else _with_lf(text))


def split_at_lf(text: str) -> list[str]:
    """Return the lines of a text or a part of one, as `Edit` has them: what is left of CR is a part of the lines."""
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


def parse_diff(diff: str) -> list[Replacement]:
    """Return the hunks of a unified diff of one file. The counts in their headers are not used: models miscount.

    Raises:
        EditError: The diff has no hunk, is of several files, has an invalid line, or a hunk of it changes nothing.
    """
    hunks: list[tuple[int | None, list[str]]] = []
    lines = _with_lf(diff).split("\n")
    for number, (line, following) in enumerate(pairwise([*lines, ""]), 1):
        starts_file = line.startswith("diff --git ") or (line.startswith("--- ") and following.startswith("+++ "))
        if hunks and starts_file:
            raise EditError("the diff changes more than one file; change each file with a call of its own")
        if (header := _HUNK.fullmatch(line)) is not None:
            hunks.append((int(header[1]) if header[1] else None, []))
        elif hunks and line[:1] in (" ", "-", "+", ""):
            hunks[-1][1].append(line)
        elif hunks and not line.startswith("\\"):
            raise EditError(
                f"line {number} of the diff begins with {line[:1]!r}; lines of a hunk begin with ' ', - or +"
            )
    if not hunks:
        raise EditError("the diff has no hunk; one begins with a line such as @@ -12,4 +12,5 @@")
    found = []
    for begin, body in hunks:
        while body and not body[-1]:
            body.pop()
        # Models leave out the space of an empty line.
        signed = [each or " " for each in body]
        old, new = ("\n".join(each[1:] for each in signed if each[0] in kinds) for kinds in (" -", " +"))
        if not any(each[0] in "+-" for each in signed):
            raise EditError("a hunk of the diff has no line that begins with - or +, so it changes nothing")
        has_old = any(each[0] in " -" for each in signed)
        # A hunk that only inserts replaces nothing behind its line.
        has_new = any(each[0] in " +" for each in signed)
        replaced, by = f"{old}\n" if has_old else "", f"{new}\n" if has_new else ""
        found.append(Replacement(replaced, by, is_hunk=True, line=begin))
    return found


def diff_lines(before: str, after: str, context: int = 3) -> list[str]:
    """Return the hunks of a unified diff of two texts, as lines without line feeds; empty if the texts are equal.

    `context` is the number of unchanged lines around each change. Only a line feed ends a line: another line break,
    such as a form feed, is a change within a line. If one text ends in a line feed and the other does not,
    `NO_LINE_FEED` says so.
    """
    # Imported here, because the file-tool server shows nothing.
    from difflib import unified_diff

    if before and after and not before.endswith("\n") and not after.endswith("\n"):
        before, after = f"{before}\n", f"{after}\n"
    lines: list[str] = []
    for line in list(unified_diff(StringIO(before).readlines(), StringIO(after).readlines(), n=context))[2:]:
        lines.append(line.removesuffix("\n"))
        if before and after and not line.endswith("\n"):
            lines.append(NO_LINE_FEED)
    return lines


def shown(path: str, arguments: Mapping[str, Any], text: str | None) -> str:
    """Return what a call of `write_file` or `edit_file` changes in the text of a file, as a unified diff.

    If `text` is None, or the edit cannot be made in it, the diff shows the replacements alone. If the call's own diff
    cannot be read, it is returned as it is. Empty if nothing would change.
    """
    head = [f"--- a/{path}", f"+++ b/{path}"]
    if "content" in arguments:
        lines = diff_lines(text or "", str(arguments["content"]))
        return "\n".join([*head, *lines]) if lines else ""
    try:
        if text is not None:
            made = edit(text, arguments)
            return "\n".join([*head, *diff_lines(made.before, made.after)])
    except EditError:
        pass
    try:
        pieces = replacements(arguments)
    except EditError:
        return str(arguments.get("diff", ""))
    lines = []
    for each in pieces:
        hunks = diff_lines(each.old, each.new)
        if each.everywhere and hunks:
            hunks[0] = "@@ each occurrence @@"
        elif each.is_hunk and each.line is not None and hunks:
            hunks[0] = f"@@ line {each.line} @@"
        lines += hunks
    return "\n".join([*head, *lines]) if lines else ""


def apply(text: str, pieces: Sequence[Replacement]) -> str:
    """Return a text after all replacements, made in order.

    Raises:
        EditError: A replacement cannot be made, or nothing would change. The message names the replacement.
    """
    moved, now = 0, text
    for number, piece in enumerate(pieces, 1):
        try:
            after = _apply_hunk(now, piece, moved) if piece.is_hunk else _replace(now, piece, text)
        except EditError as error:
            which = f"{'hunk' if piece.is_hunk else 'edit'} {number} of {len(pieces)}, so none was made: "
            raise EditError(f"{which if len(pieces) > 1 else ''}{error}") from None
        moved += after.count("\n") - now.count("\n")
        now = after
    if now == text:
        raise EditError("nothing would change: the old and the new text are the same")
    return now


def _replace(text: str, piece: Replacement, original: str) -> str:
    if not piece.old:
        raise EditError(
            "old_text is empty; to insert, give the line next to the place as old_text, and again in new_text; "
            "write_file makes a new file"
        )
    count = text.count(piece.old)
    if count == 1 or (count and piece.everywhere):
        return text.replace(piece.old, piece.new)
    if count:
        lines = [line_of(text, found.start()) for found in re.finditer(re.escape(piece.old), text)]
        raise EditError(
            f"old_text occurs {count} times, in {_enumerated(lines)}; add lines around the one that you mean until "
            "it is the only one, or set replace_all to replace each"
        )
    if piece.old in original:
        raise EditError("an earlier edit of this call changed old_text; give it as it is after that edit")
    raise EditError(f"old_text occurs 0 times. {_explain_missing(text, piece)}")


def line_of(text: str, at: int) -> int:
    """Return the number of the line that contains the character at index `at`, as `read_file` counts lines."""
    return text.count("\n", 0, at) + 1


def _enumerated(lines: Sequence[int]) -> str:
    numbers = ", ".join(map(str, lines[:_MOST_SHOWN]))
    more = f" and {len(lines) - _MOST_SHOWN} more" if len(lines) > _MOST_SHOWN else ""
    return f"{'lines' if len(lines) > 1 else 'line'} {numbers}{more}"


def _apply_hunk(text: str, piece: Replacement, moved: int) -> str:
    """Return a text after one hunk; of several places take the one nearest to the line that the hunk names.

    `moved` is how many lines earlier hunks added.

    Raises:
        EditError: The lines of the hunk are not in the text, or their place is not certain.
    """
    # So that the last line is found, too, if nothing ends it.
    padded = text if text.endswith("\n") or not text else f"{text}\n"
    lines, old = padded.split("\n"), piece.old.removesuffix("\n").split("\n")
    wanted = None if piece.line is None else piece.line - 1 + moved
    if not piece.old:
        if wanted is None:
            raise EditError("it has no line of the file; give one or more lines before or after the place")
        # `-12,0` inserts behind line 12.
        places = [min(max(wanted + 1, 0), len(lines) - 1)]
        old = []
    else:
        places = [at for at in range(len(lines) - len(old)) if lines[at : at + len(old)] == old]
    if not places:
        # The lines of a hunk have no CR.
        hint = ", of which only some lines end in CR and LF: use old_text" if "\r\n" in text else ""
        raise EditError(f"its lines are not in the file{hint}. {_explain_missing(text, piece)}")
    at = places[0]
    if len(places) > 1:
        nearest = sorted(places, key=lambda place: abs(place - (wanted or 0)))
        if wanted is None or abs(nearest[0] - wanted) == abs(nearest[1] - wanted):
            where = _enumerated([place + 1 for place in places])
            raise EditError(f"its lines occur {len(places)} times, from {where}; add lines around the place")
        at = nearest[0]
    new = piece.new.removesuffix("\n").split("\n") if piece.new else []
    changed = "\n".join([*lines[:at], *new, *lines[at + len(old) :]])
    return changed if padded == text else changed.removesuffix("\n")


def _explain_missing(text: str, piece: Replacement) -> str:
    """Return why a text was probably not found, with the lines of the file that are most like it."""
    # With a CR before the LF, if only some of the lines have one.
    lines, wanted = split_at_lf(text), split_at_lf(piece.old)
    if not any(line.strip() for line in wanted):
        return "It is only white space; give the lines around it, too."
    bare = _NUMBERED.sub("", piece.old)
    if bare != piece.old and bare.rstrip("\n") in text:
        return "It begins with the line numbers that read_file shows; leave out each number and the tab behind it."
    words, part = ([" ".join(line.split()) for line in each] for each in (lines, wanted))
    if len(part) == 1:
        same = next((at for at, line in enumerate(words) if part[0] in line), None)
    else:
        places = range(len(words) - len(part) + 1)
        same = next((at for at in places if words[at : at + len(part)] == part), None)
    if same is not None:
        return f"But for white space it is in the file; give it exactly so:\n{_numbered(lines, same, len(wanted))}"
    done = piece.new.strip() and text.count(piece.new) == 1
    if done:
        number = line_of(text, text.find(piece.new))
        return f"The new text is in the file already, from line {number}: this change may be made."
    from difflib import SequenceMatcher

    longest = max(range(min(len(wanted), 200)), key=lambda at: len(wanted[at].strip()))
    matcher = SequenceMatcher(b=wanted[longest].strip()[:_MAX_LINE], autojunk=False)
    best, score = None, _LIKE
    for at, line in enumerate(lines[:MAX_COMPARED]):
        matcher.set_seq1(line.strip()[:_MAX_LINE])
        if matcher.real_quick_ratio() > score and matcher.quick_ratio() > score and (now := matcher.ratio()) > score:
            best, score = at, now
    like = None if best is None else max(0, best - longest)
    if like is None:
        return f"Nothing in the file ({len(lines)} lines) is like it; read the file again, or search it with grep."
    return f"The lines most like it are these; read the file again:\n{_numbered(lines, like, len(wanted))}"


def _numbered(lines: Sequence[str], start: int, count: int) -> str:
    """Return numbered lines for an error message, with JSON's escapes for characters that cannot be seen."""
    some = [line[:_MAX_LINE] for line in lines[start : start + min(count, _MOST_SHOWN)]]
    escapes = {ord(each): json.dumps(each)[1:-1] for each in "".join(some) if not each.isprintable() and each != "\t"}
    shown = [f"{number}\t{line.translate(escapes)}" for number, line in enumerate(some, start + 1)]
    if count > _MOST_SHOWN:
        shown.append(f"[{count - _MOST_SHOWN} more lines]")
    if escapes:
        names = " and ".join(list(escapes.values())[:_MOST_SHOWN])
        shown.append(f"[{names}: one character each, as in JSON; or replace a smaller part, without them]")
    return "\n".join(shown)
