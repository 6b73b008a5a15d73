"""Types that a project brings itself: never wider than their file says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from crewboard.agent_types import find, find_all
from crewboard.errors import UsageError
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
    ],
)
def test_a_broken_file_is_named_and_passed_over(tmp_path: Path, front: str, why: str) -> None:
    bring(tmp_path, "good", "name: good\ndescription: fine\n")
    bring(tmp_path, "bad", front)
    types, (broken,) = find_all(tmp_path)
    assert "good" in types
    assert broken.path.name == "bad.md"
    assert why in broken.why
    with pytest.raises(UsageError, match=r"bad\.md was skipped"):
        find(tmp_path, "nothing")


def test_an_agent_of_an_own_type_has_its_tools_and_its_words(crew_on: Make, tmp_path: Path) -> None:
    bring(tmp_path, "a", "name: auditor\ndescription: looks\ntools: Read\n")
    crew = crew_on(script=[calls("grep", pattern="x"), says("done")])
    crew.run("ann", "auditor", "look")
    offered = {tool["name"] for tool in crew.model.requests[0]["tools"]}
    assert offered & {"read_file", "grep", "bash", "write_file"} == {"read_file"}
    assert "You look for a." in crew.model.requests[0]["system"]
    (result,) = [event for event in crew.events("ann") if isinstance(event, ToolResult)]
    assert result.is_error


def test_the_broken_file_that_was_meant_is_the_one_that_is_named(tmp_path: Path) -> None:
    bring(tmp_path, "first", "- a\n")
    bring(tmp_path, "wanted", "name: [\n")
    with pytest.raises(UsageError, match=r"wanted\.md was skipped"):
        find(tmp_path, "wanted")
