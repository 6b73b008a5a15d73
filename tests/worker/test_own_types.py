"""Types that a project brings itself: never wider than their file says."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from crewboard.agent_types import LEAD_TOOLS, MAX_FILE_SIZE, TYPES, find, find_all, is_trusted, trust
from crewboard.errors import UntrustedError, UsageError
from crewboard.records import ToolResult
from tests.crew import Crew
from tests.model import calls, says

Make = Callable[..., Crew]


def bring(root: Path, name: str, front: str, folder: str = ".claude/agents") -> None:
    (root / folder).mkdir(parents=True, exist_ok=True)
    (root / folder / f"{name}.md").write_text(f"---\n{front}---\nYou look for {name}.\n")


def test_tools_are_mapped_and_unknown_ones_are_left_out(tmp_path: Path) -> None:
    bring(
        tmp_path, "a", "name: auditor\ndescription: looks\ntools: Read, Grep, WebFetch, Bash(git log:*)\nmodel: haiku\n"
    )
    found = find(tmp_path, "auditor")
    assert found.tools == ("read_file", "grep")
    assert (found.writes, found.executes, found.model) == (False, False, "claude-haiku-5-5")
    assert found.prompt == "You look for a."


def test_our_folder_comes_first_and_lists_are_lists(tmp_path: Path) -> None:
    bring(tmp_path, "a", "name: auditor\ndescription: theirs\ntools: [Read]\n")
    bring(tmp_path, "a", "name: auditor\ndescription: ours\ntools:\n  - Edit\n", ".crewboard/agents")
    assert find(tmp_path, "auditor").summary == "ours"
    assert find(tmp_path, "auditor").tools == ("edit_file",)
    assert find(tmp_path, "auditor").writes


@pytest.mark.parametrize(
    ("front", "why"),
    [
        ("name: code\ndescription: x\n", "'code' is a built-in type"),
        ("name: Bad Name\ndescription: x\n", "cannot name"),
        ("name: x1\n", "description"),
        ("name: [\n", "parsing a flow"),
        ("- a\n", "front matter"),
        ("name: bad\ndescription: x\nx: " + "[" * 9 + "]" * 9 + "\n", "nested more than 8 deep"),
        ("name: bad\ndescription: x\nx: " + "[" * 7000 + "\n", "nested more than 8 deep"),
        ("name: bad\ndescription: x\na: &a [x]\nb: [*a, *a]\n", "alias"),
        ("name: bad\ndescription: &a {x: y}\nb: {<<: *a}\n", "alias"),
        ("name: bad\ndescription: x\nx: " + "a" * 20_000 + "\n", "longer than 16384 characters"),
        ("name: bad\ndescription: x\n? [a]\n: b\n", "constructing a mapping"),
        ("name: bad\n", "description"),
        ("\n" * 100_000 + "name: bad\n", "longer than"),
    ],
)
def test_a_broken_file_is_named_and_passed_over(tmp_path: Path, front: str, why: str) -> None:
    bring(tmp_path, "good", "name: good\ndescription: fine\n")
    bring(tmp_path, "bad", front)
    types, (broken,) = find_all(tmp_path)
    assert "good" in types
    assert "bad" not in types
    assert broken.path.name == "bad.md"
    assert why in broken.why
    with pytest.raises(UsageError, match=r"bad\.md was skipped"):
        find(tmp_path, "nothing")


@pytest.mark.parametrize(
    "value", ["2001-13-45", "9" * 15_000, "1e999999999", "0x" + "f" * 9000, "!!python/name:os.system"]
)
def test_no_value_that_is_not_used_can_break_a_type(tmp_path: Path, value: str) -> None:
    bring(tmp_path, "a", f"name: auditor\ndescription: looks\nx: {value}\n")
    assert find(tmp_path, "auditor").summary == "looks"


@pytest.mark.parametrize("fill", ["a,", "? ", "- ", "[],", "'", '"', "&a ", "!a ", "\n", ": ", "{a: ", "a: b\n", "|\n"])
def test_a_file_of_the_largest_size_is_read_in_a_moment(tmp_path: Path, fill: str) -> None:
    bring(tmp_path, "a", f"name: auditor\ndescription: looks\nx: [{fill * (16_000 // len(fill))}\n")
    (tmp_path / ".claude/agents/b.md").write_bytes(b"---" + b"\n" * (MAX_FILE_SIZE - 3))
    begun = time.process_time()
    find_all(tmp_path)
    assert time.process_time() - begun < 2


def test_no_link_is_followed_to_a_type(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    bring(outside, "a", "name: auditor\ndescription: private\n")
    root = tmp_path / "root"
    bring(root, "b", "name: b\ndescription: x\n", ".crewboard/agents")
    (root / ".crewboard/agents/a.md").symlink_to(outside / ".claude/agents/a.md")
    bring(outside, "second", "name: second\ndescription: private\n")
    os.link(outside / ".claude/agents/second.md", root / ".crewboard/agents/hard.md")
    (root / ".claude").symlink_to(outside / ".claude")
    types, broken = find_all(root)
    assert types.keys() - TYPES == {"b"}
    assert {(file.path.relative_to(root).as_posix(), "link" in file.why) for file in broken} == {
        (".crewboard/agents/a.md", True), (".crewboard/agents/hard.md", True), (".claude/agents", True)
    }  # fmt: skip


def test_what_is_no_regular_file_blocks_nothing(tmp_path: Path) -> None:
    bring(tmp_path, "good", "name: good\ndescription: fine\n")
    os.mkfifo(tmp_path / ".claude/agents/pipe.md")
    (tmp_path / ".claude/agents/folder.md").mkdir()
    (tmp_path / ".crewboard").write_text("a file")
    types, broken = find_all(tmp_path)
    assert "good" in types
    assert {file.path.name for file in broken} == {"pipe.md", "folder.md", "agents"}


def test_a_type_of_the_project_needs_the_users_yes_once(crew_on: Make, tmp_path: Path) -> None:
    bring(tmp_path, "a", "name: auditor\ndescription: looks\ntools: Read, Bash\n")
    crew = crew_on(XDG_STATE_HOME=str(tmp_path / "state"))
    with pytest.raises(UntrustedError, match=r"not accepted: it may run commands .*trust auditor"):
        crew.hire("ann", "auditor", "look")
    kind = find(tmp_path, "auditor")
    assert not is_trusted(kind, crew.environment)
    trust(kind, crew.environment)
    assert is_trusted(find(tmp_path, "auditor"), crew.environment)
    bring(tmp_path, "a", "name: auditor\ndescription: looks\ntools: Read, Bash, Write\n")
    assert not is_trusted(find(tmp_path, "auditor"), crew.environment), "another file is another question"
    with pytest.raises(UntrustedError, match="run commands and write files"):
        crew.hire("ann", "auditor", "look")


def test_no_own_type_has_the_tools_of_a_lead(tmp_path: Path) -> None:
    named = ", ".join([*LEAD_TOOLS, "Task", "SpawnAgent"])
    bring(tmp_path, "a", f"name: boss\ndescription: leads\ntools: Read, {named}\n")
    bring(tmp_path, "b", "name: heir\ndescription: has all\n")
    for name in ("boss", "heir"):
        assert not set(find(tmp_path, name).tools) & {*LEAD_TOOLS}


@pytest.mark.parametrize("name", ["lead", "operator", "all", "Code", "c\u043ede", "code ", "a\u202eb"])
def test_no_own_type_looks_like_another(tmp_path: Path, name: str) -> None:
    bring(tmp_path, "a", f'name: "{name}"\ndescription: x\ntools: Bash\n')
    types, broken = find_all(tmp_path)
    assert set(types) == set(TYPES)
    assert len(broken) == 1


def test_a_file_that_comes_before_an_accepted_one_is_another_question(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    bring(tmp_path, "z", "name: auditor\ndescription: looks\ntools: Read\n")
    trust(find(tmp_path, "auditor"), environment)
    bring(tmp_path, "a", "name: auditor\ndescription: looks\ntools: Read, Bash\n")
    found = find(tmp_path, "auditor")
    assert not found.executes or not is_trusted(found, environment)


def test_an_agent_of_an_own_type_has_its_tools_and_its_words(
    monkeypatch: pytest.MonkeyPatch, crew_on: Make, tmp_path: Path
) -> None:
    bring(tmp_path, "a", "name: auditor\ndescription: looks\ntools: Read\n")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    crew = crew_on(script=[calls("grep", pattern="x"), says("done")])
    trust(find(tmp_path, "auditor"), crew.environment)
    crew.run("ann", "auditor", "look")
    offered = {tool["name"] for tool in crew.model.requests[0]["tools"]}
    assert offered & {"read_file", "grep", "bash", "write_file"} == {"read_file"}
    assert "You look for a." in str(crew.model.requests[0]["system"])
    (result,) = [event for event in crew.events("ann") if isinstance(event, ToolResult)]
    assert result.is_error


def test_the_broken_file_that_was_meant_is_the_one_that_is_named(tmp_path: Path) -> None:
    bring(tmp_path, "first", "- a\n")
    bring(tmp_path, "wanted", "name: [\n")
    with pytest.raises(UsageError, match=r"wanted\.md was skipped"):
        find(tmp_path, "wanted")
