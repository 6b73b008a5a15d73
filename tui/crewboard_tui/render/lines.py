"""Lines of a screen as plain data: text and tones, independent of any terminal.

Panes build these with pure functions, so that the content of a screen can be tested without a screen. Widths are
terminal cells: a Chinese character takes two, a combining mark none.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len, chop_cells, set_cell_size

from crewboard.untrusted import as_run
from crewboard_tui.render.sanitize import is_revealing, safe_line, safe_lines

if TYPE_CHECKING:
    from crewboard_tui.render.syntax import Pieces

ELLIPSIS = "…"
_MOST_SHOWN = 2000
_WORD = re.compile(r"\S+\s*|\s+")
_HEAD = re.compile(r"\S+")
_LEAST_TITLE = 8
"""The least cells of a rule that the text at its end leaves to a long title."""

_SHORT_TITLE = 12
"""The most cells of a title that the text at the end of a rule never cuts."""

_TITLE = 3
"""Cells before the title in a rule: it stands above the names of the rows."""


class Span(Struct, frozen=True):
    """A piece of a line.

    `tone` has names of styles, separated by blanks, `key` is the id of the key that a click presses.
    """

    text: str
    tone: str = ""
    key: str = ""


Line = tuple[Span, ...]

Align = Literal["left", "right"]


def one_line(text: str) -> str:
    """Return untrusted text made safe and on one line. A very long text is cut and ends with an ellipsis."""
    return safe_line(text[:_MOST_SHOWN]) + (ELLIPSIS if len(text) > _MOST_SHOWN else "")


def say(text: str, tone: str = "") -> Span:
    """Return a span of untrusted text, made safe and on one line."""
    return Span(one_line(text), tone)


def say_run(text: str, tone: str = "") -> Span:
    """Return a span of a text that a machine runs, or that names a file or a branch (`untrusted.as_run`)."""
    return say(as_run(text), tone)


def line(*spans: Span | str) -> Line:
    """Return a line of spans; a bare string must be trusted text and gets no tone."""
    return tuple(Span(span) if isinstance(span, str) else span for span in spans)


def plain(content: Line) -> str:
    """Return a line's text without its tones."""
    return "".join(span.text for span in content)


def width_of(content: Line) -> int:
    """Return a line's width in cells."""
    return sum([cell_len(span.text) for span in content])


def matches(text: str, wanted: str) -> bool:
    """Return True if every word of `wanted` is in `text`; the case does not matter."""
    return all(word in text.lower() for word in wanted.lower().split())


def clip(text: str, width: int) -> str:
    """Cut `text` to at most `width` cells, ending with an ellipsis if anything was cut."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1) + ELLIPSIS if width > 0 else ""


def clip_middle(name: str, width: int) -> str:
    """Cut a name to at most `width` characters in its middle, because similar names often differ at their ends."""
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return name[: width - 1 - tail] + ELLIPSIS + name[len(name) - tail :] if width > 1 else ELLIPSIS[:width]


def pad_name(name: str, width: int) -> str:
    """Cut a name in its middle or fill it to exactly `width` cells."""
    return pad(clip_middle(name, width), width)


def pad(text: str, width: int, align: Align = "left") -> str:
    """Cut or fill `text` to exactly `width` cells."""
    text = clip(text, width)
    space = " " * (width - cell_len(text))
    return space + text if align == "right" else text + space


def crop(content: Line, width: int) -> Line:
    """Cut a line to at most `width` cells, ending with an ellipsis if anything was cut."""
    if width_of(content) <= width:
        return content
    kept: list[Span] = []
    for span in content:
        size = cell_len(span.text)
        if size >= width:
            # More text follows, so the last cell must be an ellipsis.
            return (*kept, replace(span, text=clip(span.text + " ", width)))
        kept.append(span)
        width -= size
    return tuple(kept)


def spread(left: Line, right: Line, width: int) -> Line:
    """Return one line with `left` at its start and `right` at its end; `left` is cut if both do not fit."""
    left = crop(left, max(0, width - width_of(right) - 1))
    return crop((*left, Span(" " * (width - width_of(left) - width_of(right))), *right), width)


def side_by_side(left: Sequence[Line], right: Sequence[Line], across: int) -> list[Line]:
    """Return lines in two columns, of which the second begins `across` cells from the left."""
    return [
        (*one, Span(" " * (across - width_of(one))), *other) if other else one
        for one, other in itertools.zip_longest(left, right, fillvalue=())
    ]


def rule_line(title: str, right: str, head: Line, indent: int, width: int, *, is_focused: bool) -> Line:
    """Return the rule above a pane in `width` cells: its title, the heads of the columns below, and a text at its end.

    Heads begin `indent` cells from the left; a head is left out where the title or the text stands. If the text has no
    room behind the heads, it follows the title, if there is room for it there. The part of a title after ` · ` moves to
    the end if it would hide more than one head.
    """
    line = "━" if is_focused else "─"
    heads = [(indent + found.start(), found.group().lower(), "dim") for found in _HEAD.finditer(plain(head))]
    last = indent + cell_len(plain(head).rstrip())
    name, _, more = title.partition(" · ")
    behind = " · ".join(filter(None, (more, right)))

    def hidden(title: str, right: str) -> int:
        """Return how many heads are hidden by the title after its name, or by the text at the end."""
        begin, end = cell_len(title) + _TITLE + 2, width - (cell_len(right) + 3 if right else 0)
        behind_name = (each for each in heads if each[0] > cell_len(name) + _TITLE + 2)
        return sum(at <= begin or at + cell_len(head) >= end for at, head, _ in behind_name)

    if hidden(title, "") > 1 and last + cell_len(behind) + 4 <= width:
        title, right = name, behind
    elif not right and (shorter := more.rpartition(" · ")[0]) and hidden(name, shorter) + 1 < hidden(title, right):
        # Its last words tell which key shows all again: the footer does so too.
        title, right = name, shorter
    elif (
        head
        and right
        and last + cell_len(right) + 4 > width
        and cell_len(title) + cell_len(right) + _TITLE + 4 <= width
    ):
        title, right = f"{title} · {right}", ""
    least = cell_len(title) + _TITLE + 5 if cell_len(title) <= _SHORT_TITLE else _LEAST_TITLE
    right = clip(right, max(0, width - least))
    end = width - (cell_len(right) + 3 if right else 0)
    words = [(_TITLE, clip(title, max(0, end - _TITLE - 1)), "key" if is_focused else "dim")]
    # A head right behind the title would read as a word of it.
    words += [each for each in heads if each[0] > cell_len(words[0][1]) + _TITLE + 2]
    spans: list[Span] = []
    at = 0
    for start, text, tone in [*(each for each in words if each[0] + cell_len(each[1]) < end), (end + 1, right, "dim")]:
        if text and start >= max(1, at):
            # Words that are one blank apart share it.
            gap = start - 1 - at
            spans += [Span(line * gap, "rule"), Span(f" {text} ", tone)] if gap >= 0 else [Span(f"{text} ", tone)]
            at = start + cell_len(text) + 1
    return crop((*spans, Span(line * (width - at), "rule")), width)


def wrap(text: str, width: int, indent: str = "") -> tuple[str, ...]:
    """Break text, made safe, between words into lines of at most `width` cells.

    Continuation lines start with `indent`.
    """
    return _wrapped(text, width, indent, is_revealing())


@lru_cache(maxsize=512)
def _wrapped(text: str, width: int, indent: str, reveals: bool) -> tuple[str, ...]:  # noqa: ARG001, FBT001  for the cache
    width, indent = max(width, 1), indent if width > 2 * len(indent) else ""
    wrapped: list[str] = []
    for raw in safe_lines(text):
        line = raw.rstrip()
        if cell_len(line) <= width:
            wrapped.append(line)
            continue
        lead = line[: len(line) - len(line.lstrip())]
        current = lead if cell_len(lead) < width else ""
        fresh = True
        for word in line.split():
            joined = current + word if fresh else f"{current} {word}"
            if cell_len(joined) <= width:
                current, fresh = joined, False
                continue
            if not fresh:
                wrapped.append(current)
            fresh = False
            *whole, rest = chop_cells(word, width - cell_len(indent)) or [""]
            wrapped += [indent + piece for piece in whole]
            current = indent + rest
        wrapped.append(current)
    return tuple(wrapped)


def hang(content: Line, width: int, indent: int, most: int) -> list[Line]:
    """Break a line between words into at most `most` lines, of which the last is cut.

    Continuation lines are indented by `indent` cells.
    """
    indent = indent if width > 2 * indent else 0
    # Words with the blanks after them. One that is wider than a line is split.
    words: list[Span] = []
    room = max(1, width - indent)
    for span in content:
        for text in _WORD.findall(span.text):
            pieces = [text] if cell_len(text.rstrip()) <= room else chop_cells(text, room)
            words += [replace(span, text=piece) for piece in pieces]
    rows: list[list[Span]] = [[]]
    used = 0
    for word in words:
        if rows[-1] and used + cell_len(word.text.rstrip()) > width:
            rows.append([])
            used = indent
        rows[-1].append(word)
        used += cell_len(word.text)
    first, *rest = [*rows[: most - 1], list(itertools.chain(*rows[most - 1 :]))]
    return [crop(_bare(first), width), *(crop((Span(" " * indent), *_bare(row)), width) for row in rest if row)]


def _bare(row: list[Span]) -> Line:
    """Return a row without trailing blanks."""
    return (*row[:-1], *(replace(span, text=span.text.rstrip()) for span in row[-1:]))


def exact_lines(text: str, width: int, tone: str = "") -> list[Line]:
    """Return text in lines of at most `width` cells, made safe, broken at the full width, with every blank."""
    pieces = [piece for raw in safe_lines(text) for piece in chop_cells(raw, max(1, width)) or [""]]
    return [(Span(piece, tone),) for piece in pieces]


_TINTS = {"+": "add", "-": "del", "@": "info", "\\": "dim"}
_SIGNS = {"+": "success add", "-": "error del"}


def tone_of(kind: str) -> str:
    """Return the tone of a line of a diff by its first character."""
    return _TINTS.get(kind, "")


def sign_tone(kind: str) -> str:
    """Return the tone of the sign at the start of a line of a diff."""
    return _SIGNS.get(kind) or tone_of(kind)


def tinted_lines(raw: str, width: int, pieces: "Pieces" = ()) -> list[Line]:
    """Break a line of a diff at the full width, on the background for an added or a removed line.

    The `pieces` of its code are counted from behind its sign.
    """
    (first, *rest), kind = exact_lines(raw, width), raw[:1]
    text, tone = plain(first), tone_of(raw[:1])
    lines: list[Line] = [(Span(text[:1], sign_tone(kind)), *coloured(text[1:], tone, pieces))]
    at = len(text) - 1
    for text in map(plain, rest):
        lines.append(tuple(coloured(text, tone, pieces, at)))
        at += len(text)
    return lines


def coloured(text: str, tone: str, pieces: "Pieces", begin: int = 0) -> list[Span]:
    """Return `text`, which begins at the offset `begin` of a line of code, with the tones of the line's `pieces`."""
    spans: list[Span] = []
    last = 0
    for start, stop, more in pieces:
        at, end = max(start - begin, last), min(stop - begin, len(text))
        if at < end:
            spans += [Span(text[last:at], tone)] if at > last else []
            spans.append(Span(text[at:end], f"{tone} {more}".lstrip()))
            last = end
    return [*spans, Span(text[last:], tone)] if last < len(text) or not spans else spans


_LIST = r"\s*(?:[-*+]|\d+[.)])\s+"
_BLOCK = r"\s*$|\s{4,}|#|>|\||\s*(?:[-*+]|\d+[.)])\s|\s*[-*_=]{3,}\s*$|\s*<"
"""The start of a line that does not continue the paragraph above."""

_DIFFS = ("diff", "patch")
"""The languages of a block of code whose lines are those of a diff."""

_FENCE = r"\s*(?:```|~~~)"
_MARKS = {"`": "info", "**": "bold"}
"""The tone of a text between two of these marks of Markdown. The marks stay in the text."""

_INLINE = r"(`[^`]+`|\*\*[^*]+\*\*)"


def markdown_lines(text: str, width: int) -> list[Line]:
    """Return Markdown in lines of at most `width` cells: headings bold, code in colours, list items indented."""
    return [line for _, lines in markdown_blocks(text, width) for line in lines]


def markdown_blocks(text: str, width: int) -> list[tuple[int, list[Line]]]:
    """Return `markdown_lines` by paragraph, each with the number of its first line in the text, counted from 1."""
    blocks: list[tuple[int, list[Line]]] = []
    fence = language = ""
    # The pieces of each further line of a block of code; none if its language is unknown.
    code: Iterator[Pieces] = iter(())
    # Join continuation lines to their paragraphs, so that they can be wrapped again; with the number of the first.
    joined: list[tuple[int, str]] = []
    fenced = False
    for at, each in enumerate(safe_lines(text), 1):
        is_fence = each.lstrip().startswith(("```", "~~~"))
        before = joined[-1][1] if joined and not fenced and not is_fence else ""
        continues = (
            before.strip()
            and not before.startswith(("#", "|", "    "))
            and not re.match(_FENCE, before)
            and not re.match(_BLOCK, each)
        )
        if continues:
            joined[-1] = joined[-1][0], f"{before} {each.strip()}"
        else:
            joined.append((at, each))
        fenced ^= is_fence
    for at, (number, raw) in enumerate(joined):
        lines: list[Line] = []
        blocks.append((number, lines))
        if raw.lstrip().startswith(("```", "~~~")):
            fence = "" if fence else raw.strip()
            language = fence.lstrip("`~").strip()
            code = iter(())
            if language:
                # Imported here because the first picture shows no code.
                from crewboard_tui.render.syntax import of_code, of_diff

                rest = (each for _, each in joined[at + 1 :])
                block = list(itertools.takewhile(lambda each: not re.match(_FENCE, each), rest))
                is_diff = language in _DIFFS
                code = iter(of_diff(block) if is_diff else of_code(block, language=language.split(maxsplit=1)[0]))
            lines += [(Span(piece, "trace"),) for piece in wrap(raw, width)]
        elif language in _DIFFS:
            lines += tinted_lines(raw, width, next(code, ()))
        elif fence:
            lines += _code_lines(raw, width, next(code, None))
        else:
            lines += _paragraph(raw, width)
    return blocks


def _code_lines(raw: str, width: int, pieces: "Pieces | None") -> list[Line]:
    """Return a line of a block of code; without `pieces` it has one tone."""
    if pieces is None:
        return [(Span(piece, "info"),) for piece in wrap(raw, width)]
    lines: list[Line] = []
    at = 0
    for piece in wrap(raw, width):
        spans: list[Span] = []
        # Where a line is broken, blanks are gone.
        for word in re.findall(r"\s+|\S+", piece):
            at = max(at, raw.find(word, at))
            spans += coloured(word, "", pieces, at)
            at += len(word)
        lines.append(tuple(spans))
    return lines


def _paragraph(raw: str, width: int) -> list[Line]:
    if raw.startswith("#"):
        first, *rest = wrap(raw, width)
        marks = first[: len(first) - len(first.lstrip("#"))]
        title = (Span(marks, "trace"), Span(first.removeprefix(marks), "bold"))
        return [title, *((Span(piece, "bold"),) for piece in rest)]
    item = re.match(_LIST, raw)
    indent = " " * (item.end() if item else 0)
    tone = "italic" if raw.startswith(">") else ""
    lines = []
    for text in wrap(raw, width, indent):
        spans: list[Span] = []
        for piece in filter(None, re.split(_INLINE, text)):
            mark = next((mark for mark in _MARKS if piece.startswith(mark)), "")
            inside = piece.removeprefix(mark).removesuffix(mark) if mark else piece
            edge = [Span(mark, "trace")] if mark else []
            spans += [*edge, Span(inside, _MARKS.get(mark, tone)), *edge]
        lines.append(tuple(spans))
    return lines
