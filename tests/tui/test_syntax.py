"""Syntax colours of diffs and code: what has them, what has none, and that texts of agents cannot do harm by them."""

import re
import time
from collections.abc import Iterator

import pytest
from pygments.token import Comment

from crewboard_tui.render import syntax
from crewboard_tui.render.diff import diff_lines, hunk_lines, parse_diff
from crewboard_tui.render.lines import Line, markdown_lines, plain
from crewboard_tui.widgets.painter import CODE
from tests.frozen import Frozen
from tests.tui.stage import Stage, opened
from tests.tui.test_look import ground, painted

Token = tuple[int, tuple[str, ...], str]

PATCH = """--- a/src/x.py
+++ b/src/x.py
@@ -1,3 +1,3 @@
 def kept(): return "same"
-def gone(): return "old"  # 1
+def come(): return "new"  # 2
"""


def toned(lines: list[Line]) -> list[tuple[str, str]]:
    """Return the pieces of code with their tones, but for the grounds."""
    found = ((span.text, set(span.tone.split()) & CODE.keys()) for line in lines for span in line)
    return [(text, tones.pop()) for text, tones in found if tones]


def colours(stage: Stage, row: str, *words: str) -> list[tuple[str, str]]:
    """Return the colour and the ground of the first cell of each word in a row of the screen."""
    cells = next(cells for cells in painted(stage) if row in "".join(cell.text for cell in cells))
    text = "".join(cell.text for cell in cells)
    found = []
    for word in words:
        cell = cells[text.index(word)]
        assert cell.style is not None
        assert cell.style.color is not None
        found.append((cell.style.color.get_truecolor().hex, ground(cell)))
    return found


@pytest.mark.parametrize("ascii_only", [False, True])
async def test_a_diff_is_painted_in_syntax_colours_on_each_ground(frozen: Frozen, ascii_only: bool) -> None:
    frozen.asks("perm-1", "permission", "release", 22, {"tool": "edit_file", "diff": PATCH, "summary": "edit"})
    async with opened(frozen, 80, 30, ascii_only=ascii_only) as stage:
        await stage.app.open_need("permission:release:perm-1")
        await stage.sees("def kept(): return", "def come(): return")
        await stage.settles()
        theme = stage.app.theme_variables
        names = ("foreground",) * 4 if ascii_only else ("accent", "info", "success", "foreground")
        wanted = [theme[name].lower() for name in names]
        grounds = []
        for row, name, text in (("kept", "kept", '"same'), ("gone", "gone", '"old'), ("come", "come", '"new')):
            found = colours(stage, f"def {row}()", "def", name, text, "():")
            assert [colour for colour, _ in found] == wanted, row
            grounds.append({each for _, each in found})
        assert [len(each) for each in grounds] == [1, 1, 1]
        assert grounds[1:] == [{theme["del"].lower()}, {theme["add"].lower()}]


def test_the_text_before_and_after_is_read_apart() -> None:
    patch = '--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n-text = """\n+text = 1\n if text: pass\n'
    assert toned(diff_lines(patch, 60)) == [
        ('"""', "string"), ("1", "number"), ("if", "keyword"), ("pass", "keyword"),
    ]  # fmt: skip


def test_the_name_of_each_file_tells_its_language() -> None:
    patch = "".join(
        f"diff --git a/{name} b/{name}\n--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-if 1\n+let 1\n"
        for name in ("a.rs", "my b.py", "c.unheard", "Makefile.txt")
    )
    signs = [("if", "keyword"), ("1", "number")]
    wanted = [*signs, ("let", "keyword"), ("1", "number"), *signs, ("1", "number")]
    assert toned(diff_lines(patch, 60)) == wanted
    files = parse_diff(patch)
    assert toned([line for each in files for hunk in each.hunks for _, line in hunk_lines(hunk, 60, 1)]) == wanted
    assert syntax.of_code(["SELECT 1"], file="x.sql") == (((0, 6, "keyword"), (7, 8, "number")),)


def test_code_in_markdown_has_the_colours_of_its_language() -> None:
    text = "see `def`\n\n```python\ndef f(): return 1,  'one' # a long remark\n```\n\n```unheard\ndef\n```\n"
    lines = markdown_lines(text, 24)
    assert toned(lines)[:4] == [("def", "keyword"), ("f", "definition"), ("return", "keyword"), ("1", "number")]
    assert [plain(line) for line in lines][3:5] == ["def f(): return 1, 'one'", "# a long remark"]
    assert lines[-3] == markdown_lines("```\ndef", 24)[1]


def test_a_fence_of_a_diff_has_the_colours_of_its_file() -> None:
    assert toned(markdown_lines(f"```diff\n{PATCH}```\ndef", 60)) == toned(diff_lines(PATCH, 60)) != []


@pytest.mark.parametrize(
    "hostile",
    [
        "\x1b[2J\x1b]0;owned\x07 def \u202egnorts\u202c '\x9b5m \ud800 \x00\x0c\x85\u2028\r",
        "def " + "x" * 10_000,
        "日本" * 3000,
        "(" * 390,
        "'" * 399,
        "f'{" * 120,
        'r"\\' * 80,
    ],
    ids=["controls", "long", "wide", "open", "quotes", "nested", "escapes"],
)
@pytest.mark.parametrize("width", [7, 80])
def test_no_text_is_changed_by_its_colours(hostile: str, width: int) -> None:
    def shown(name: str) -> list[str]:
        patch = f"--- a/{name}\n+++ b/{name}\n@@ -1,2 +1,2 @@\n {hostile}\n-{hostile}\n+def {hostile}"
        git = f"diff --git a/{name} b/{name}\n{patch}"
        hunks = (hunk for each in parse_diff(git) for hunk in each.hunks)
        lines = [*diff_lines(patch, width), *(line for hunk in hunks for _, line in hunk_lines(hunk, width, 1))]
        return [plain(line) for line in lines]

    without = "".join(shown("x.no"))
    for name in ("x.py", "x.js", "x.rb"):
        assert "".join(shown(name)).replace(name, "x.no") == without


def test_what_is_long_has_no_colours() -> None:
    assert syntax.of_code(["if " + "x" * 398, "if"], file="x.py") == ((), ((0, 2, "keyword"),))
    assert syntax.of_code(["if"] * 2001, file="x.py") == ()
    head = "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n"
    (found,) = parse_diff(head + "".join(f"@@ -{at},1 +{at},1 @@\n-while\n+if\n" for at in range(1, 1200)))
    assert [bool(toned([line for _, line in hunk_lines(hunk, 60, 1)])) for hunk in found.hunks[998:1002]] == [
        True, True, False, False,
    ]  # fmt: skip


class _Slow:
    def get_tokens_unprocessed(self, text: str) -> Iterator[Token]:
        yield 0, Comment, str(re.match(r"(a+)+$", text))


class _Failing:
    def get_tokens_unprocessed(self, text: str) -> Iterator[Token]:
        yield 0, Comment, text
        raise RecursionError


class _Lying:
    def get_tokens_unprocessed(self, text: str) -> Iterator[Token]:
        yield 5, Comment, "more than there is" * 9
        yield 0, Comment, "an earlier one"


@pytest.mark.parametrize("kind", [_Slow, _Failing, _Lying])
def test_a_lexer_that_fails_or_takes_for_ever_delays_nothing(
    monkeypatch: pytest.MonkeyPatch, kind: type[object]
) -> None:
    monkeypatch.setattr(syntax, "_lexer", lambda file, language: kind())
    patch = f"--- a/{kind}.x\n+++ b/{kind}.x\n@@ -1 +1 @@\n+{'a' * 60}b"
    begun = time.process_time()
    lines = [plain(line) for line in diff_lines(patch, 80)]
    # Without a limit it would take years.
    assert time.process_time() - begun < 5
    assert lines[3] == f"+{'a' * 60}b"
    monkeypatch.setattr(syntax, "_tokens", lambda *_: pytest.fail("read again"))
    diff_lines(patch, 80)


def test_a_long_diff_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    head = "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n"
    (found,) = parse_diff(head + "".join(f"@@ -{at},1 +{at},1 @@\n-def a{at}\n+if b{at}\n" for at in range(1, 500)))
    first = [hunk_lines(hunk, 60, 1) for hunk in found.hunks]
    monkeypatch.setattr(syntax, "_tokens", lambda *_: pytest.fail("read again"))
    assert [hunk_lines(hunk, 60, 1) for hunk in found.hunks] == first


@pytest.mark.long
def test_of_many_pages_the_last_ones_are_kept() -> None:
    for page in range(20):
        syntax.of_code([f"if a{page}: {at}" for at in range(syntax.MOST_LINES)], file="x.py")
    assert sum(len(lines) for _, _, lines in syntax._kept) <= syntax._MOST_KEPT + syntax.MOST_LINES
