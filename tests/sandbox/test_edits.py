"""The inputs that edit_file and grep take, and what is said of each mistake: a model must know how to go on."""

import hashlib
import json
import os
import re
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crewboard import edits
from crewboard.worker.tools import file_server
from crewboard.worker.tools.base import Outcome
from crewboard.worker.tools.workspace import MAX_FILE, Workspace
from tests.system import need_program

CODE = "def a():\n    return 1\n\n\ndef b():\n    return 1\n\n\nclass Crew:\n    size = 3\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    (made / "src").mkdir(parents=True)
    (made / "src/code.py").write_text(CODE)
    return made


@pytest.fixture
def workspace(root: Path) -> Workspace:
    return Workspace(root, root / ".crewboard/default/results")


def ask(workspace: Workspace, name: str, **given: Any) -> Outcome:
    reply = file_server.answer(workspace, {"name": name, "input": given})
    return Outcome(reply["content"], is_error=reply["is_error"])


def edit(workspace: Workspace, **given: Any) -> str:
    outcome = ask(workspace, "edit_file", path="src/code.py", **given)
    assert not outcome.is_error, outcome.content
    return outcome.content


def test_several_edits_are_made_in_their_order(workspace: Workspace, root: Path) -> None:
    pairs = [("size = 3", "size = 4"), ("size = 4", "size = 5\n    name = 'x'")]
    said = edit(workspace, edits=[{"old_text": old, "new_text": new} for old, new in pairs])
    assert said == "edited src/code.py (2 places, +3 −2 lines)"
    assert (root / "src/code.py").read_text() == CODE.replace("size = 3", "size = 5\n    name = 'x'")


def test_of_several_edits_all_are_made_or_none(workspace: Workspace, root: Path) -> None:
    pairs = [{"old_text": "size = 3", "new_text": "size = 4"}, {"old_text": "size = 9", "new_text": ""}]
    outcome = ask(workspace, "edit_file", path="src/code.py", edits=pairs)
    assert outcome.is_error
    assert "edit 2 of 2, so none was made: old_text occurs 0 times" in outcome.content
    assert (root / "src/code.py").read_text() == CODE


def test_replace_all_replaces_each_occurrence(workspace: Workspace, root: Path) -> None:
    said = edit(workspace, old_text="return 1", new_text="return 2", replace_all=True)
    assert said == "edited src/code.py (2 places, +2 −2 lines)"
    assert (root / "src/code.py").read_text() == CODE.replace("return 1", "return 2")


def test_a_diff_is_found_by_its_lines(workspace: Workspace, root: Path) -> None:
    diff = """--- a/src/code.py
+++ b/src/code.py
@@ -4,3 +4,3 @@
 def b():
-    return 1
+    return 2

@@ -9,2 +9,3 @@ class Crew:
 class Crew:
     size = 3
+    name = "x"
"""
    assert edit(workspace, diff=diff) == "edited src/code.py (2 places, +2 −1 lines)"
    expected = CODE.replace("def b():\n    return 1", "def b():\n    return 2") + '    name = "x"\n'
    assert (root / "src/code.py").read_text() == expected


def test_a_hunk_goes_to_the_place_nearest_to_its_line(workspace: Workspace, root: Path) -> None:
    edit(workspace, diff="@@ -6,1 +6,1 @@\n-    return 1\n+    return 2\n")
    assert (root / "src/code.py").read_text() == CODE.replace("def b():\n    return 1", "def b():\n    return 2")
    edit(workspace, diff="@@ -0,0 +1,2 @@\n+import os\n+\n@@ -2 +4 @@\n-    return 1\n+    return os\n")
    assert (root / "src/code.py").read_text().startswith("import os\n\ndef a():\n    return os\n")


def test_a_diff_keeps_the_end_of_the_file(workspace: Workspace, root: Path) -> None:
    (root / "src/code.py").write_bytes(b"one\r\ntwo")
    edit(workspace, diff="@@\n one\n-two\n\\ No newline at end of file\n+three\n+four\n")
    assert (root / "src/code.py").read_bytes() == b"one\r\nthree\r\nfour"


def test_an_edit_keeps_bytes_that_are_not_utf8(workspace: Workspace, root: Path) -> None:
    (root / "src/code.py").write_bytes(b"\xff\xfe one\n")
    edit(workspace, old_text="one", new_text="zwö")
    assert (root / "src/code.py").read_bytes() == b"\xff\xfe zw\xc3\xb6\n"


BAD_DIFFS = {
    "no hunk": ("+x\n", "no hunk"),
    "two files": ("--- a\n+++ b\n@@\n-x\n+y\n--- c\n+++ d\n@@\n-x\n+y\n", "more than one file"),
    "other lines": ("@@\n-x\nand y\n", "line 3 of the diff begins with 'a'"),
    "nothing": ("@@\n def a():\n", "changes nothing"),
    "no place": ("@@\n-    return 7\n+    return 8\n", "The lines most like it are these"),
    "two places": ("@@\n-    return 1\n+    return 8\n", "occur 2 times, from lines 2, 6"),
    "no line to find": ("@@\n+x\n", "no line of the file"),
}


@pytest.mark.parametrize(("diff", "told"), BAD_DIFFS.values(), ids=BAD_DIFFS.keys())
def test_a_diff_that_does_not_fit_changes_nothing(workspace: Workspace, root: Path, diff: str, told: str) -> None:
    outcome = ask(workspace, "edit_file", path="src/code.py", diff=diff)
    assert outcome.is_error
    assert told in outcome.content
    assert (root / "src/code.py").read_text() == CODE


MISTAKES: dict[str, tuple[str, dict[str, Any], str]] = {
    "a name with a typing error": ("read_file", {"path": "src/coed.py"}, "did you mean src/code.py?"),
    "a name in other letters": ("read_file", {"path": "src/Code.py"}, "did you mean src/code.py?"),
    "a folder with a typing error": ("read_file", {"path": "scr/code.py"}, "did you mean src/code.py?"),
    "a file in another folder": ("read_file", {"path": "code.py"}, "did you mean src/code.py?"),
    "a folder that is missing": ("list_dir", {"path": "srcs"}, "did you mean src?"),
    "nothing like it": ("read_file", {"path": "src/zzzzzzzz"}, "list_dir src shows what is there"),
    "grep in no folder": ("grep", {"pattern": "x", "path": "scr"}, "did you mean src?"),
    "the path of another computer": ("read_file", {"path": "/home/me/src/code.py"}, "did you mean src/code.py?"),
    "a path out and back": ("read_file", {"path": "src/../src/code.py"}, "a path from the workspace's root, here src/"),
    "outside": ("read_file", {"path": "/etc/hostname"}, "give a path from its root"),
    "a line behind the end": ("read_file", {"path": "src/code.py", "offset": 99}, "a line between 1 and 10"),
    "a folder": ("read_file", {"path": "src"}, "is a directory; use list_dir"),
    "a binary file": ("read_file", {"path": "binary"}, "a command such as file or strings"),
    "a large file": ("read_file", {"path": "large"}, "read a part of it with sed -n"),
    "a pattern of names at the top": ("glob", {"pattern": "*.py"}, "**/*.py looks in all folders"),
    "a bracket": ("grep", {"pattern": "a("}, "put a backslash before"),
    "an unknown type": ("grep", {"pattern": "a", "type": "vb"}, "a glob such as **/*.vb"),
    "two places": ("edit_file", {"old_text": "return 1", "new_text": "x"}, "occurs 2 times, in lines 2, 6; add lines"),
    "white space": ("edit_file", {"old_text": "  size  = 3", "new_text": "x"}, "exactly so:\n10\t    size = 3"),
    "tabs": (
        "edit_file",
        {"old_text": "def b():\n\treturn 1", "new_text": "x"},
        "exactly so:\n5\tdef b():\n6\t    ret",
    ),
    "line numbers": ("edit_file", {"old_text": "9\tclass Crew:\n10\t    size = 3", "new_text": "x"}, "leave out each"),
    "an old version": (
        "edit_file",
        {"old_text": "size = 2", "new_text": "x"},
        "read the file again:\n10\t    size = 3",
    ),
    "made before": ("edit_file", {"old_text": "zzz", "new_text": "size = 3"}, "in the file already, from line 10"),
    "nothing is like it": (
        "edit_file",
        {"old_text": "zzzzzz", "new_text": "x"},
        "(10 lines) is like it; read the file",
    ),
    "empty": ("edit_file", {"old_text": "", "new_text": "x"}, "write_file makes a new file"),
    "the same": ("edit_file", {"old_text": "size", "new_text": "size"}, "nothing would change"),
    "no file": ("edit_file", {"path": "src/cod.py", "old_text": "a", "new_text": "b"}, "did you mean src/code.py?"),
}


@pytest.mark.parametrize(("tool", "given", "told"), MISTAKES.values(), ids=MISTAKES.keys())
def test_the_error_of_a_mistake_says_how_to_go_on(
    workspace: Workspace, root: Path, tool: str, given: dict[str, Any], told: str
) -> None:
    (root / "binary").write_bytes(b"\x7fELF\0\0")
    with (root / "large").open("wb") as file:
        file.truncate(MAX_FILE + 1)
    outcome = ask(workspace, tool, **{**({"path": "src/code.py"} if tool == "edit_file" else {}), **given})
    assert told in outcome.content
    assert outcome.is_error or tool == "glob"
    assert (root / "src/code.py").read_text() == CODE


def test_the_error_of_a_stale_edit_says_to_read_again(workspace: Workspace, root: Path) -> None:
    ask(workspace, "read_file", path="src/code.py")
    (root / "src/code.py").write_text("def changed(): ...\n")
    outcome = ask(workspace, "edit_file", path="src/code.py", edits=[{"old_text": "changed", "new_text": "x"}])
    assert "read it again, then repeat the call" in outcome.content


def test_a_suggestion_never_names_hidden_files(workspace: Workspace, root: Path) -> None:
    (root / ".crewboard/default").mkdir(parents=True)
    (root / ".crewboard/default/config.json").write_text("{}")
    (root / "secret.pem").write_text("key")
    request = {"name": "read_file", "input": {"path": "secret.pen"}, "limits": {"hidden": [str(root / "secret.pem")]}}
    assert "secret.pem" not in file_server.answer(workspace, request)["content"]
    assert ".crewboard" not in ask(workspace, "read_file", path="crewboard").content
    assert "config.json" not in ask(workspace, "read_file", path="/old/.crewboard/default/config.json").content[60:]


def test_a_long_text_that_is_missing_is_searched_within_bounds(workspace: Workspace, root: Path) -> None:
    (root / "src/code.py").write_text("".join(f"value_{number} = {number}\n" for number in range(60_000)))
    outcome = ask(workspace, "edit_file", path="src/code.py", old_text="value_x = 17\n" * 500, new_text="y")
    assert "occurs 0 times" in outcome.content
    assert len(outcome.content) < 3000


@pytest.fixture(params=["own", "ripgrep"])
def searching(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search with and without ripgrep; both must find the same."""
    if request.param == "ripgrep":
        need_program("rg")
    monkeypatch.setattr(file_server, "RIPGREP", (shutil.which("rg"),) if request.param == "ripgrep" else ())


TREE = {
    ".gitignore": "*.log\n/build/\n!keep.log\ndocs/**/draft\n# a comment\n",
    "a.py": "x\nneedle = 1\ny\n",
    "b.ts": "needle: 2\n",
    "out.log": "needle 3\n",
    "keep.log": "needle 4\n",
    "build/c.py": "needle 5\n",
    "src/build/d.py": "needle 6\n",
    "src/.gitignore": "gen.py\n!out.log\n",
    "src/gen.py": "needle 7\n",
    "src/out.log": "needle 8\n",
    "docs/a/draft": "needle 9\n",
    "docs/a/final": "needle 10\n",
    "node_modules/e.js": "needle 11\n",
}


@pytest.fixture
def tree(root: Path) -> Path:
    for name, text in TREE.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


SEARCHES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "all": ({}, ["a.py", "b.ts", "docs/a/final", "keep.log", "src/build/d.py", "src/out.log"]),
    "by name": ({"glob": "*.{py,ts}"}, ["a.py", "b.ts", "src/build/d.py"]),
    "by path": ({"glob": "src/**"}, ["src/build/d.py", "src/out.log"]),
    "by type": ({"type": "ts"}, ["b.ts"]),
    "below a folder": ({"path": "docs"}, ["docs/a/final"]),
    "an ignored folder by name": ({"path": "build"}, ["build/c.py"]),
    "also ignored ones": (
        {"ignored": True, "type": "py"},
        ["a.py", "build/c.py", "src/build/d.py", "src/gen.py"],
    ),
}


@pytest.mark.usefixtures("searching")
@pytest.mark.parametrize(("how", "expected"), SEARCHES.values(), ids=SEARCHES.keys())
def test_grep_searches_what_is_asked_for(
    workspace: Workspace, tree: Path, how: dict[str, Any], expected: list[str]
) -> None:
    found = ask(workspace, "grep", pattern="needle", names_only=True, **how).content.splitlines()
    assert sorted(found) == expected
    assert (tree / expected[0]).exists()


@pytest.mark.usefixtures("searching", "tree")
@pytest.mark.parametrize(
    "pattern", ["needle", "need(le|les)", "^needle", "n.*le: 2$", "ne+dlex*", "[n]eedle", "le: \\d"]
)
def test_each_pattern_is_found_in_the_same_files(workspace: Workspace, pattern: str) -> None:
    assert ask(workspace, "grep", pattern=pattern, type="ts").content == "b.ts:1:needle: 2"
    assert (
        ask(workspace, "grep", pattern=pattern.upper().replace("\\D", "\\d"), type="ts").content != "b.ts:1:needle: 2"
    )
    assert ask(workspace, "grep", pattern=pattern.replace("n", "N"), type="ts", ignore_case=True).content == (
        "b.ts:1:needle: 2"
    )


@pytest.mark.usefixtures("searching")
@pytest.mark.parametrize(
    "pattern",
    [
        "\\u00a0",
        "\\xa0",
        "\\U000000a0",
        "\\N{NO-BREAK SPACE}",
        "\\u00a0\\x1b\\[31m",
        "\\033",
        "\\x1b\\[3",
        "\\u200b",
    ],
)
def test_characters_written_by_number_are_found(workspace: Workspace, root: Path, pattern: str) -> None:
    (root / "odd").write_text("plain\n\u00a0\x1b[31m\u200b\n")
    assert ask(workspace, "grep", pattern=pattern, names_only=True).content == "odd"


@pytest.mark.usefixtures("tree")
def test_an_empty_pattern_matches_each_line(workspace: Workspace) -> None:
    assert ask(workspace, "grep", pattern="", path="a.py").content.count("a.py:") == 3


_PARTS = (
    "a", "b", "00a0", "\\x41", "\\u00a0", "\\U00000041", "\\N{SPACE}", "\\101", "\\0", "\\07", "\\d", "\\.", "\\[",
    "[ab]", "[]a]", "[^]a]", "[\\]a]", "[", "]", "{", "}", "{2}", "{0}", "{,}", "{,2}", "{}", "*", "+", "?", "*?", "++",
    "^", "$", ".", "(", "|", ")", "(?:", "(?i)", "\n", "é",
)  # fmt: skip


@pytest.mark.long
@given(st.lists(st.sampled_from(_PARTS), max_size=9).map("".join), st.data())
def test_the_literal_of_a_pattern_is_in_each_match(pattern: str, data: st.DataObject) -> None:
    try:
        with warnings.catch_warnings(action="ignore"):
            expression = re.compile(pattern)
    except re.error:
        return
    if literal := file_server._literal_in(pattern):
        assert literal in data.draw(st.from_regex(expression, fullmatch=True))


@pytest.mark.usefixtures("searching", "tree")
def test_grep_shows_lines_around_a_match(workspace: Workspace) -> None:
    assert ask(workspace, "grep", pattern="needle", path="a.py", context=1).content.splitlines() == [
        "a.py-1-x", "a.py:2:needle = 1", "a.py-3-y",
    ]  # fmt: skip
    both = ask(workspace, "grep", pattern="needle", glob="*.{py,ts}", context=1, path=".").content.splitlines()
    assert both[3:5] == ["--", "b.ts:1:needle: 2"]


@pytest.mark.parametrize("how", [{}, {"names_only": True}, {"context": 2}], ids=["lines", "names", "context"])
def test_grep_says_that_matches_are_left_out(workspace: Workspace, root: Path, how: dict[str, Any]) -> None:
    for number in range(file_server.MAX_MATCHES):
        (root / f"{number:03}").write_text("a hit\n")
    lines = ask(workspace, "grep", pattern="hit", **how).content.splitlines()
    assert [line for line in lines if line != "--"][-1].startswith("499")
    (root / "src/code.py").write_text("a\nhit\n")
    *most, last = ask(workspace, "grep", pattern="hit", **how).content.splitlines()
    assert last == "[more than 500 matches; the others are left out]"
    assert most == lines


@pytest.mark.usefixtures("searching", "tree")
def test_grep_says_that_ignored_files_were_left_out(workspace: Workspace) -> None:
    assert "ignored: true searches them" in ask(workspace, "grep", pattern="needle 3").content
    assert ask(workspace, "grep", pattern="needle 3", ignored=True).content == "out.log:1:needle 3"


SETS = {
    "none of it": ("**/[!a].ts", {"b.ts", "src/b.ts"}),
    "none of it, at the top": ("[!a].ts", {"b.ts"}),
    "none of it, as git writes it": ("[^a].ts", {"b.ts"}),
    "a range": ("{src,sub}/[a-b].ts", {"src/b.ts"}),
    "no slash": ("src[!a]b.ts", set[str]()),
    "a bracket": ("[]]", {"]"}),
    "a backslash": ("**/[\\d]", {"\\", "d"}),
    "no set": ("[!]", set[str]()),
    "an empty range": ("**/[z-a].ts", set[str]()),
    "what Python warns of": ("[+--a].ts", {"a.ts"}),
}


@pytest.mark.parametrize(("pattern", "expected"), SETS.values(), ids=SETS.keys())
def test_glob_takes_sets_of_characters(workspace: Workspace, root: Path, pattern: str, expected: set[str]) -> None:
    for name in ("a.ts", "b.ts", "src/b.ts", "]", "\\", "d"):
        (root / name).write_text("")
    found = ask(workspace, "glob", pattern=pattern)
    assert not found.is_error
    assert {line for line in found.content.split("\n") if not line.startswith("no file matches")} == expected


STARS = {
    "no other one": ("**", {"a.ts", "src/b.ts", "src/x/c.ts"}),
    "before": ("**.ts", {"a.ts", "src/b.ts", "src/x/c.ts"}),
    "after": ("s**", {"src/b.ts", "src/x/c.ts"}),
    "within": ("s**.ts", {"src/b.ts", "src/x/c.ts"}),
    "in a folder": ("src/***c.ts", {"src/x/c.ts"}),
    "between folders": ("src/**/*.ts", {"src/b.ts", "src/x/c.ts"}),
}


@pytest.mark.parametrize(("pattern", "expected"), STARS.values(), ids=STARS.keys())
def test_two_stars_of_glob_stand_for_any_folders(
    workspace: Workspace, root: Path, pattern: str, expected: set[str]
) -> None:
    (root / "src/code.py").unlink()
    (root / "src/x").mkdir()
    for name in ("a.ts", "src/b.ts", "src/x/c.ts"):
        (root / name).write_text("")
    assert set(ask(workspace, "glob", pattern=pattern).content.split("\n")) == expected


def test_many_stars_are_compared_without_going_back(workspace: Workspace, root: Path) -> None:
    """If a comparison goes back, each star multiplies the time by the length of the name or of the path."""
    (root / ("a" * 200)).write_text("")
    deep = root / ("a/" * 28)
    deep.mkdir(parents=True)
    (deep / "f").write_text("")
    before = time.process_time()
    for pattern in ("*a*a*a*a*b", "**/*a*a*a*a*b", "**/a/" * 8 + "zzz/f"):
        assert ask(workspace, "glob", pattern=pattern).content.startswith("no file matches")
    assert time.process_time() - before < 1


IGNORED = {
    "names": ("*.{txt,log}", {"a.txt", "b.log", "c"}, {"a.{txt,log}"}),
    "a set that git negates": ("[^a].txt", {"a.txt"}, {"b.txt"}),
    "a set that is negated": ("[!a].txt", {"a.txt"}, {"b.txt"}),
    "a space at the end": ("x\\  ", {"x"}, {"x "}),
    "a backslash": ("a\\\\b.txt", {"ab.txt"}, {"a\\b.txt"}),
    "a star that is none": ("\\*\r", {"a"}, {"*"}),
    "behind a byte order mark": ("\ufeffa.txt", {"b.txt"}, {"a.txt"}),
    "many folders": ("**/**/**/**/a/**/a.txt", {"a.txt"}, {"a/a.txt", "a/b/a.txt"}),
    "what begins with a sign": ("\\!a\n\\#a", {"a"}, {"!a", "#a"}),
}


@pytest.mark.usefixtures("searching")
@pytest.mark.parametrize(("rules", "kept", "ignored"), IGNORED.values(), ids=IGNORED.keys())
def test_grep_reads_gitignore_as_git_does(
    workspace: Workspace, root: Path, rules: str, kept: set[str], ignored: set[str]
) -> None:
    (root / ".gitignore").write_text(f"{rules}\n", newline="")
    for name in kept | ignored:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("needle\n")
    assert set(ask(workspace, "grep", pattern="needle", names_only=True).content.split("\n")) == kept


@pytest.mark.usefixtures("searching")
def test_grep_leaves_out_only_what_gitignore_names(workspace: Workspace, root: Path) -> None:
    """The other files are those of ripgrep, and of git outside of the workspace."""
    (root / "sub").mkdir()
    (root / "sub/a").write_text("needle\n")
    (root / ".git/info").mkdir(parents=True)
    for name in (".rgignore", ".ignore", ".git/info/exclude"):
        (root / name).write_text("sub/\n")
    (root.parent / ".gitignore").write_text("sub/\n")
    assert ask(workspace, "grep", pattern="needle").content == "sub/a:1:needle"


def test_ripgrep_reads_nothing_that_grep_leaves_out(
    workspace: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads large folders for nothing, and fails at a credential that is masked."""
    need_program("rg")
    odd = ("a/b/out", "a/o[u]t", "{a,b}", "*", "out\\", "out ", "#out")
    (root / ".gitignore").write_text("/a/*/out\n/a/o*t\n{*\n\\*\n/out*\n\\#*\n*.log\n.npmrc\n")
    for name in (*(f"{each}/x" for each in odd), "a/x.log", "outer ", ".npmrc", "a/b/x", "home/x"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("needle\n")
    listed: list[Any] = []
    listed_by_ripgrep = file_server._listed_by_ripgrep

    def kept(*given: Any) -> frozenset[str] | None:
        listed.append(listed_by_ripgrep(*given))
        return listed_by_ripgrep(*given)

    monkeypatch.setattr(file_server, "_listed_by_ripgrep", kept)
    hidden = [str(root / name) for name in (".npmrc", "home")]
    request = {"name": "grep", "input": {"pattern": "needle"}, "limits": {"hidden": hidden}}
    assert file_server.answer(workspace, request)["content"] == "a/b/x:1:needle"
    # Its patterns cannot name a folder with a backslash at the end.
    assert listed == [{"a/b/x", "out\\/x"}]


@pytest.mark.usefixtures("searching")
def test_grep_reads_no_link_and_nothing_hidden(workspace: Workspace, tree: Path) -> None:
    (tree.parent / "outside").write_text("needle out\n")
    (tree / "linked").symlink_to(tree.parent / "outside")
    os.link(tree.parent / "outside", tree / "second")
    (tree / "secret").write_text("needle secret\n")
    limits = {"hidden": [str(tree / "secret")]}
    found = file_server.answer(workspace, {"name": "grep", "input": {"pattern": "needle"}, "limits": limits})["content"]
    assert "needle = 1" in found
    assert "out\n" not in found
    assert "secret" not in found


def test_a_hostile_gitignore_takes_little_time(workspace: Workspace, tree: Path) -> None:
    (tree / ".gitignore").write_text("*a" * 300 + "\n" + "**/a/" * 40 + "\n[\n\\\n!\n/\n**\n!**\n")
    assert "a.py:2:needle = 1" in ask(workspace, "grep", pattern="needle").content


def test_a_request_shows_each_form_as_a_diff() -> None:
    old = edits.shown("a.py", {"old_text": "x = 1\n", "new_text": "x = 2\n", "replace_all": True}, None)
    assert old.splitlines() == ["--- a/a.py", "+++ b/a.py", "@@ each occurrence @@", "-x = 1", "+x = 2"]
    several = edits.shown(
        "a.py", {"edits": [{"old_text": "a", "new_text": "b"}, {"old_text": "c", "new_text": ""}]}, None
    )
    assert [line for line in several.splitlines()[2:] if line[0] in "+-"] == ["-a", "+b", "-c"]
    diff = edits.shown("a.py", {"diff": "@@ -7 +7 @@\n-a\n+b\n"}, None)
    assert diff.splitlines()[2:] == ["@@ line 7 @@", "-a", "+b"]
    assert edits.shown("a.py", {"diff": "rm -rf"}, "text") == "rm -rf", "what cannot be read is shown as it is"
    assert edits.shown("a.py", {"edits": 7}, None) == ""


OTHER_BREAKS = "\f\v\x1c\x1d\x1e\x85\u2028\u2029\r"
"""The characters that `str.splitlines` takes for the end of a line, and Python, a shell or git do not."""


@pytest.mark.parametrize("other", OTHER_BREAKS)
def test_a_diff_shows_a_line_that_becomes_part_of_a_comment(other: str) -> None:
    text = "# verify the user first\nverify(user)\nrun()\n"
    call = {
        "edits": [
            {"old_text": "first\nverify", "new_text": f"first{other}verify"},
            {"old_text": "run()", "new_text": "run(1)"},
        ]
    }
    for known in (text, None):
        lines = edits.shown("a.py", call, known).split("\n")
        assert "-verify(user)" in lines or "-verify" in lines
        assert any(line[0] == "+" and other in line for line in lines)


@pytest.mark.parametrize("other", OTHER_BREAKS)
def test_only_a_line_feed_ends_a_line_of_a_file(workspace: Workspace, root: Path, other: str) -> None:
    text = f"a{other}b\nhit\nhit\n"
    assert ask(workspace, "write_file", path="odd", content=text).content == "created odd (3 lines)"
    assert ask(workspace, "read_file", path="odd").content == f"1\ta{other}b\n2\thit\n3\thit"
    assert ask(workspace, "grep", pattern="hit", path="odd").content == "odd:2:hit\nodd:3:hit"
    assert "in lines 2, 3;" in ask(workspace, "edit_file", path="odd", old_text="hit", new_text="x").content
    told = ask(workspace, "edit_file", path="odd", old_text="a b", new_text="c").content
    escape = json.dumps(other)[1:-1]
    assert f"exactly so:\n1\ta{escape}b\n[{escape}: one character each, as in JSON" in told
    assert not ask(workspace, "edit_file", path="odd", old_text=f"a{other}b", new_text="c").is_error
    assert (root / "odd").read_text() == "c\nhit\nhit\n"


def test_a_file_without_lf_has_lines_that_end_in_cr(workspace: Workspace, root: Path) -> None:
    """As one line, what is behind its first 2000 characters could not be read."""
    (root / "old").write_bytes(b"one\rtwo\rtwo\r" + b"x" * 3000 + b"\rlast\r")
    note = "[each line ends in CR alone, also after an edit]"
    assert ask(workspace, "read_file", path="old", offset=5).content == f"5\tlast\n{note}"
    assert ask(workspace, "grep", pattern="last", path="old").content == "old:5:last"
    assert "in lines 2, 3;" in ask(workspace, "edit_file", path="old", old_text="two", new_text="x").content
    assert not ask(workspace, "edit_file", path="old", old_text="one\ntwo", new_text="a\nb").is_error
    assert not ask(workspace, "edit_file", path="old", old_text="b\rtwo", new_text="b\rc").is_error
    assert not ask(workspace, "edit_file", path="old", diff="@@\n-last\n+end\n+\n").is_error
    assert (root / "old").read_bytes() == b"a\rb\rc\r" + b"x" * 3000 + b"\rend\r\r"
    assert not ask(workspace, "edit_file", path="old", old_text="a\r\nb", new_text="a\r\nnew\r\nb").is_error
    assert (root / "old").read_bytes().startswith(b"a\rnew\rb\rc\r")


def test_a_cr_within_a_line_makes_no_two_of_it(workspace: Workspace, root: Path) -> None:
    (root / "odd").write_bytes(b"a\rb\nhit\n")
    assert "(+1 −1 lines)" in ask(workspace, "edit_file", path="odd", old_text="a\rb", new_text="c").content


def test_an_error_shows_which_lines_end_in_cr_and_lf(workspace: Workspace, root: Path) -> None:
    (root / "mixed").write_bytes(b"one\r\ntwo\n\xe2\x80\x8bthree\r\nfour\n")
    assert ask(workspace, "read_file", path="mixed").content == "1\tone\n2\ttwo\n3\t\u200bthree\n4\tfour"
    told = ask(workspace, "edit_file", path="mixed", diff="@@\n-one\n-two\n+x\n").content
    assert "only some lines end in CR and LF: use old_text. But for white space" in told
    assert "exactly so:\n1\tone\\r\n2\ttwo\n[\\r: one character each" in told
    told = ask(workspace, "edit_file", path="mixed", old_text="three\nfour", new_text="x").content
    assert "read the file again:\n3\t\\u200bthree\\r\n4\tfour\n[\\u200b and \\r: one character each" in told
    assert not ask(workspace, "edit_file", path="mixed", old_text="one\r\ntwo", new_text="x").is_error
    assert not ask(workspace, "edit_file", path="mixed", old_text="three\r\nfour", new_text="y").is_error
    assert (root / "mixed").read_bytes() == b"x\n\xe2\x80\x8by\n"


def test_the_diff_of_an_edit_is_that_of_the_whole_file() -> None:
    text = "# verify the user first\nverify(user)\nend"
    joins = edits.shown("a.py", {"old_text": "the user first\n", "new_text": ""}, text)
    assert joins.split("\n")[2:] == [
        "@@ -1,3 +1,2 @@", "-# verify the user first", "-verify(user)", "+# verify verify(user)", " end",
    ]  # fmt: skip
    windows = edits.shown("a.py", {"old_text": "a\n", "new_text": "c\n"}, "a\r\nb\r\n")
    assert windows.split("\n")[3:] == ["-a", "+c", " b"]


def test_a_diff_says_that_the_last_line_feed_is_gone() -> None:
    assert edits.diff_lines("a\nb\n", "a\nb")[1:] == [" a", "-b", "+b", edits.NO_LINE_FEED]
    assert edits.diff_lines("a\nb", "a\nb\n")[1:] == [" a", "-b", edits.NO_LINE_FEED, "+b"]
    assert edits.diff_lines("a", "a\nb")[1:] == [" a", "+b"]
    assert edits.diff_lines("", "a")[1:] == ["+a"]
    assert edits.diff_lines("a\n", "")[1:] == ["-a"]
    assert edits.diff_lines("a", "a") == []


def project(root: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def read_project_file(workspace: Workspace, root: Path, path: str) -> Outcome:
    """Read a project's file as if the user had accepted all files as they are."""
    files = {str(each.relative_to(root)): each.read_bytes() for each in root.rglob("*.md") if each.is_file()}
    accepted = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return ask(workspace, "read_project_file", path=path, accepted=accepted)


def test_a_projects_file_comes_with_what_it_imports(workspace: Workspace, root: Path) -> None:
    files = {
        "src/CLAUDE.md": "Rules. See @style.md, @../ref/api.md and @./more/deep.md.\n@param, a@b.de, `@code.md`\n",
        "src/style.md": "Tabs. @CLAUDE.md",
        "ref/api.md": "JSON. @/etc/hostname and @../../outside",
        "src/more/deep.md": "Deep.",
        "src/code.md": "no import",
    }
    project(root, files)
    (root.parent / "outside").write_text("secret")
    text = read_project_file(workspace, root, "src/CLAUDE.md").content
    assert (
        text.index("Rules.") < text.index("[src/style.md, which src/CLAUDE.md imports:]\nTabs.") < text.index("JSON.")
    )
    assert "[src/more/deep.md, which src/CLAUDE.md imports:]\nDeep." in text
    assert "ref/api.md imports a file that was not read: /etc/hostname is outside the workspace" in text
    assert text.count("Rules.") == 1
    assert "no import" not in text
    assert "secret" not in text
    assert "param" not in text.replace("@param", "")


def test_imports_are_bounded_and_follow_no_link_out(workspace: Workspace, root: Path) -> None:
    project(root, {f"{number}.md": f"text {number} @{number + 1}.md" for number in range(9)})
    project(root, {"CLAUDE.md": "\n".join(f"@many/{number}.md" for number in range(99))})
    project(root, {f"many/{number}.md": "x" * 5000 for number in range(99)})
    deep = read_project_file(workspace, root, "0.md").content
    assert "text 5" in deep
    assert "text 6" not in deep
    assert len(read_project_file(workspace, root, "CLAUDE.md").content) < 45_000
    (root.parent / "outside").write_text("secret")
    (root / "linked.md").symlink_to(root.parent / "outside")
    (root / "CLAUDE.md").write_text("@./linked.md @linked.md @.crewboard/default/config.json")
    text = read_project_file(workspace, root, "CLAUDE.md").content
    assert "secret" not in text
    assert "belongs to the team's own files" in text
    (root / "AGENTS.md").symlink_to(root.parent / "outside")
    assert read_project_file(workspace, root, "AGENTS.md").is_error
