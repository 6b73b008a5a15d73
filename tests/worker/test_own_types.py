"""Types that a project brings itself: never wider than their file says."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from crewboard import skill_files
from crewboard.agent_types import LEAD_TOOLS, TYPES, AgentType
from crewboard.commands.hire import Hire, spawn
from crewboard.errors import StorageError, UntrustedError, UsageError
from crewboard.records.agents import ToolPattern
from crewboard.records.events import ToolResult
from crewboard.type_files import MAX_FILE_SIZE, accept, find, find_all, is_accepted, require_accepted, write_new
from tests.crew import Crew
from tests.model import calls, says

Make = Callable[..., Crew]


def bring(root: Path, name: str, front: str, folder: str = ".claude/agents") -> None:
    (root / folder).mkdir(parents=True, exist_ok=True)
    (root / folder / f"{name}.md").write_text(f"---\n{front}---\nYou look for {name}.\n")


def made(root: Path, front: str) -> AgentType:
    """Return the type that a file with these fields defines."""
    bring(root, "a", f"name: auditor\ndescription: looks\n{front}\n")
    return find(root, "auditor")


def test_tools_are_mapped_and_unknown_ones_are_left_out(tmp_path: Path) -> None:
    found = made(tmp_path, "tools: Read, Grep, Task, TodoWrite, mcp__x__y\nmodel: haiku")
    assert found.tools == ("read_file", "grep")
    assert found.left_out == ("Task",), "every agent has a todo list"
    assert found.mcp == ("mcp__x__y",)
    assert (found.writes, found.executes, found.model) == (False, True, "claude-haiku-5-5"), "a server is a program"
    assert found.prompt == "You look for a."


def limits(patterns: tuple[ToolPattern, ...]) -> list[tuple[str, str]]:
    return [(each.tool, each.pattern) for each in patterns]


@pytest.mark.parametrize(
    ("named", "tools", "only", "left_out"),
    [
        ("Bash(git log:*), Bash(make test)", ["bash"], [("bash", "git log *"), ("bash", "make test")], ()),
        ("Edit(./docs/**), Read", ["read_file", "edit_file"], [("edit_file", "docs/**")], ()),
        ("Bash(git *), Bash", ["bash"], [], ()),
        ("Bash(*)", ["bash"], [], ()),
        ("Bash(git * | sh)", [], [], ("Bash(git * | sh)",)),
        ("Bash(a, b), Grep", ["grep", "bash"], [("bash", "a, b")], ()),
        ("Read(docs/**)", [], [], ("Read(docs/**)",)),
        ("Write(/etc/**), Edit(../x)", [], [], ("Write(/etc/**)", "Edit(../x)")),
        ("Bash(git *", [], [], ("Bash(git *",)),
    ],
)
def test_a_pattern_narrows_a_tool_or_is_left_out(
    tmp_path: Path, named: str, tools: list[str], only: list[tuple[str, str]], left_out: tuple[str, ...]
) -> None:
    found = made(tmp_path, f'tools: "{named}"')
    assert (list(found.tools), limits(found.only), found.left_out) == (tools, only, left_out)


@pytest.mark.parametrize(
    ("denied", "gone", "patterns", "says"),
    [
        ("Write, Edit", {"write_file", "edit_file"}, [], ""),
        ("Bash(git push:*)", set(), [("bash", "git push *")], ""),
        ("Edit(secret)", set(), [("files", "**/secret")], ""),
        ("Bash(*x*)", {"bash"}, [], "cannot be applied, so bash is left out"),
        ("Read(.env)", {"read_file", "grep"}, [], "so grep, read_file is left out"),
        ("WebFetch", set(), [], ""),
        ("TodoWrite", set(), [], "every agent has TodoWrite"),
        ("*", {*TYPES["code"].tools}, [], ""),
    ],
)
def test_what_is_disallowed_is_taken_away(
    tmp_path: Path, denied: str, gone: set[str], patterns: list[tuple[str, str]], says: str
) -> None:
    found = made(tmp_path, f'disallowedTools: "{denied}"')
    assert set(TYPES["code"].tools) - set(found.tools) == gone
    assert limits(found.denied) == patterns
    assert says in "; ".join(found.not_understood)
    assert bool(says) == bool(found.not_understood)


@pytest.mark.parametrize(
    ("mode", "plan", "asks"),
    [
        ("default", False, "all"), ("dontAsk", False, "all"), ("acceptEdits", False, "commands"), ("plan", True, ""),
        ("auto", False, ""), ("bypassPermissions", False, ""),
    ],
)  # fmt: skip
def test_a_permission_mode_can_only_require_more(tmp_path: Path, mode: str, *, plan: bool, asks: str) -> None:
    found = made(tmp_path, f"permissionMode: {mode}")
    assert (found.plan, found.asks) == (plan, asks)
    never = "permissionMode: bypassPermissions is never obeyed; the options of the hire decide what an agent may do"
    assert found.not_understood == ((never.replace("bypassPermissions", mode),) if not plan and not asks else ())


@pytest.mark.parametrize(("denied", "web"), [("Bash", True), ("WebFetch(domain:example.com)", False), ("*", False)])
def test_the_web_is_disallowed_as_a_whole(tmp_path: Path, denied: str, *, web: bool) -> None:
    assert made(tmp_path, f'web: true\ndisallowedTools: "{denied}"').web is web


def test_every_other_field_has_an_effect_or_is_named(tmp_path: Path) -> None:
    found = made(tmp_path, "color: red\nhooks: {x: y}\nmemory: user\nodd: 1\nmaxTurns: 12\nisolation: worktree")
    assert [each.partition(":")[0] for each in found.not_understood] == ["hooks", "memory", "odd"]
    assert (found.max_turns, found.worktree) == (12, True)
    found = made(tmp_path, "engine: claude\nmodel: opus\nmcp: time\ntools: [Read, mcp__time__now]")
    why = "not for an agent with an engine"
    assert found.not_understood == (f"mcp: {why}", f"model: {why}", f"tools: mcp__time__now: {why}")
    (tmp_path / ".claude/skills/release").mkdir(parents=True)
    (tmp_path / ".claude/skills/release/SKILL.md").write_text("how")
    skilled = made(tmp_path, f"skills: [release, deploy, {'x' * 300}]")
    assert skilled.skills[:2] == ("release", "deploy")
    assert [each.split(" is not found")[0] for each in skilled.not_understood] == [
        "skills: deploy",
        f"skills: {'x' * 40}",
    ]


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
        ("name: [\n", "on line 3: while parsing a flow"),
        (
            "name: x1\nmaxTurns: abc\n",
            "maxTurns: a whole number from 1 to 999999, not 'abc'; description: Field required",
        ),
        ("name: x1\ndescription: x\neffort: much\nmaxTurns: 0\nweb: 3\n", "web: '3' is not one of true, false"),
        ("- a\n", "front matter"),
        ("name: bad\ndescription: x\nx: " + "[" * 9 + "]" * 9 + "\n", "nested more than 8 deep"),
        ("name: bad\ndescription: x\nx: " + "[" * 7000 + "\n", "nested more than 8 deep"),
        ("name: bad\ndescription: x\na: &a [x]\nb: [*a, *a]\n", "alias"),
        ("name: bad\ndescription: &a {x: y}\nb: {<<: *a}\n", "alias"),
        ("name: bad\ndescription: x\nx: " + "a" * 20_000 + "\n", "longer than 16384 characters"),
        ("name: bad\ndescription: x\n? [a]\n: b\n", "constructing a mapping"),
        ("name: bad\n", "description"),
        ("\n" * 100_000 + "name: bad\n", "longer than"),
        (
            "name: bad\ndescription: x\npermissionMode: never\n",
            "permissionMode: 'never' is not one of default, acceptEdits, plan",
        ),
        ("name: bad\ndescription: x\nmaxTurns: 0\n", "maxTurns"),
        ("name: bad\ndescription: x\nisolation: remote\n", "isolation: 'remote' is not one of worktree"),
        ("name: bad\ndescription: x\nworktree: never\nisolation: worktree\n", "contradicts"),
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
    with pytest.raises(UsageError, match=r"'nothing'; .*, good; `crewboard types` names the files that were skipped$"):
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
    assert not is_accepted(kind, crew.environment)
    accept(kind, crew.environment)
    assert is_accepted(find(tmp_path, "auditor"), crew.environment)
    bring(tmp_path, "a", "name: auditor\ndescription: looks\ntools: Read, Bash, Write\n")
    assert not is_accepted(find(tmp_path, "auditor"), crew.environment), "another file is another question"
    with pytest.raises(UntrustedError, match="run commands and write files"):
        crew.hire("ann", "auditor", "look")


def test_an_earlier_accepted_text_does_not_come_back(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    first = made(tmp_path, "tools: Read, Bash")
    accept(first, environment)
    second = made(tmp_path, "tools: Read")
    accept(second, environment)
    assert is_accepted(second, environment)
    assert not is_accepted(made(tmp_path, "tools: Read, Bash"), environment)
    assert not is_accepted(replace(second, root=str(tmp_path / "other")), environment), "another workspace"


def test_a_type_that_an_older_version_accepted_stays_so(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    first = made(tmp_path, "tools: Read, Bash")
    accept(first, environment)
    (record,) = (tmp_path / "state/crewboard/accepted-types").iterdir()
    record.with_name(first.sha256).write_text(json.loads(record.read_bytes())["powers"])
    record.unlink()
    require_accepted(first, environment, "")
    second = made(tmp_path, "tools: Read")
    with pytest.raises(UntrustedError):
        require_accepted(second, environment, "")
    accept(second, environment)
    assert not is_accepted(first, environment), "one text of a name is accepted"


def test_a_file_that_is_understood_otherwise_is_another_question(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    kind = made(tmp_path, "tools: Read, Bash(git *)")
    # An older version left tools with patterns out.
    accept(replace(kind, tools=("read_file",), only=()), environment)
    assert not is_accepted(kind, environment)
    accept(kind, environment)
    assert is_accepted(find(tmp_path, "auditor"), environment)
    (record,) = (tmp_path / "state/crewboard/accepted-types").iterdir()
    record.write_text("")
    assert not is_accepted(kind, environment), "older versions recorded no more than the file"


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
    accept(find(tmp_path, "auditor"), environment)
    bring(tmp_path, "a", "name: auditor\ndescription: looks\ntools: Read, Bash\n")
    found = find(tmp_path, "auditor")
    assert not found.executes or not is_accepted(found, environment)


def test_an_agent_of_an_own_type_has_its_tools_and_its_words(
    monkeypatch: pytest.MonkeyPatch, crew_on: Make, tmp_path: Path
) -> None:
    bring(tmp_path, "a", "name: auditor\ndescription: looks\ntools: Read\n")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    crew = crew_on(script=[calls("grep", pattern="x"), says("done")])
    accept(find(tmp_path, "auditor"), crew.environment)
    crew.run("ann", "auditor", "look")
    offered = {tool["name"] for tool in crew.model.requests[0]["tools"]}
    assert offered & {"read_file", "grep", "bash", "write_file"} == {"read_file"}
    assert "You look for a." in str(crew.model.requests[0]["system"])
    (result,) = [event for event in crew.events("ann") if isinstance(event, ToolResult)]
    assert result.is_error


@pytest.mark.long
def test_an_idle_agent_gets_more_work_without_its_file(
    monkeypatch: pytest.MonkeyPatch, crew_on: Make, tmp_path: Path
) -> None:
    bring(tmp_path, "a", "name: auditor\ndescription: looks\ntools: Read\n")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    crew = crew_on(script=[says("done"), says("more done"), says("all done")])
    accept(find(tmp_path, "auditor"), crew.environment)
    crew.run("ann", "auditor", "look")
    crew.wait_for_rest("ann")
    bring(tmp_path, "a", "name: auditor\ndescription: looks\ntools: Read\npermissionMode: plan\n")
    more = Hire("ann", "auditor", "look again", given=frozenset())
    assert crew.answer(spawn(crew.team, more)).text == "more done", "no plan is asked for"
    crew.wait_for_rest("ann")
    (tmp_path / ".claude/agents/a.md").unlink()
    assert crew.answer(spawn(crew.team, more)).text == "all done"


def test_the_broken_file_that_was_meant_is_the_one_that_is_named(tmp_path: Path) -> None:
    bring(tmp_path, "first", "- a\n")
    bring(tmp_path, "wanted", "name: [\n")
    with pytest.raises(UsageError, match=r"wanted\.md was skipped"):
        find(tmp_path, "wanted")


def results_of(crew: Crew, name: str) -> list[str]:
    return [event.content for event in crew.events(name) if isinstance(event, ToolResult)]


@pytest.mark.long
def test_an_agent_uses_its_tools_within_the_patterns_of_its_type(
    monkeypatch: pytest.MonkeyPatch, crew_on: Make, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    bring(
        tmp_path, "a",
        "name: clerk\ndescription: x\ntools: Bash(echo *), Edit, Write(docs/**)\n"
        "disallowedTools: Bash(echo secret:*), Edit(docs/private)\nskills: greet, missing\n",
    )  # fmt: skip
    (tmp_path / ".claude/skills/greet").mkdir(parents=True)
    # With Landlock, files are made only in folders.
    (tmp_path / "docs").mkdir()
    (tmp_path / ".claude/skills/greet/SKILL.md").write_text("---\ndescription: x\n---\nGreet well.\n")
    crew = crew_on(
        script=[
            calls("bash", command="echo yes"),
            calls("bash", command="echo yes; ls"),
            calls("bash", command="ls"),
            calls("bash", command="echo secret 1"),
            calls("write_file", path="docs/a.txt", content="a"),
            calls("write_file", path="a.md", content="a"),
            calls("write_file", path="docs/private/b.txt", content="b"),
            says("done"),
        ]
    )
    accept(find(tmp_path, "clerk"), crew.environment)
    skill_files.accept(skill_files.find(tmp_path, "greet"), tmp_path, crew.environment)
    crew.run("ann", "clerk", "go", unsafe_no_sandbox=True)
    ran, joined, other, secret, wrote, outside, private = results_of(crew, "ann")
    assert ran == "yes\n[exit code 0]"
    for refused in (joined, other):
        assert "an agent of type clerk has it only for echo *" in refused
    assert "your type clerk denies echo secret *" in secret
    assert "docs/a.txt" in wrote
    assert (tmp_path / "docs/a.txt").read_text() == "a"
    assert "only for docs/**" in outside
    assert "your type clerk denies docs/private" in private
    assert not (tmp_path / "a.md").exists()
    assert not (tmp_path / "docs/private").exists()
    opening = str(crew.model.requests[0]["messages"][0])
    assert "Greet well." in opening
    assert "The skill missing is not loaded" in opening


def test_a_type_narrows_the_options_of_each_hire(
    monkeypatch: pytest.MonkeyPatch, crew_on: Make, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    bring(tmp_path, "a", "name: careful\ndescription: x\npermissionMode: plan\nmaxTurns: 2\n")
    bring(tmp_path, "b", "name: eager\ndescription: x\npermissionMode: acceptEdits\n")
    crew = crew_on()
    crew.model.give("ann", calls("list_dir"), calls("write_file", path="x", content="x"), says("never"))
    (tmp_path / "made").mkdir()
    crew.model.give(
        "bob", calls("write_file", path="made/y", content="y"), calls("bash", command="echo ran"), says("done")
    )
    for name in ("careful", "eager"):
        accept(find(tmp_path, name), crew.environment)
    begun = crew.hire("ann", "careful", "go", max_turns=50, unsafe_no_sandbox=True)
    crew.hire("bob", "eager", "go", unsafe_no_sandbox=True)
    asked = crew.pending("permission")
    assert (tmp_path / "made/y").read_text() == "y", "writes are accepted"
    assert (asked.from_, asked.payload["tool"]) == ("bob", "bash")
    ended = crew.answer(begun)
    spec = crew.agent("ann").spec.load()
    assert spec is not None
    assert (spec.flags.plan, spec.flags.max_turns) == (True, 2)
    assert "write_file is not allowed before your plan is approved" in results_of(crew, "ann")[1]
    assert ended.code == 79
    assert crew.wait_for("ann", "idle").status.last_error == "reached its limit of 2 model calls for one assignment"
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("mode", "ask"), [("acceptEdits", True), ("default", False)])
def test_a_write_is_asked_for_by_the_hire_or_the_type(
    monkeypatch: pytest.MonkeyPatch, crew_on: Make, tmp_path: Path, mode: str, *, ask: bool
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    bring(tmp_path, "b", f"name: eager\ndescription: x\npermissionMode: {mode}\n")
    crew = crew_on(script=[calls("write_file", path="y", content="y"), says("done")])
    accept(find(tmp_path, "eager"), crew.environment)
    crew.hire("bob", "eager", "go", ask=ask, unsafe_no_sandbox=True)
    assert crew.pending("permission").payload["tool"] == "write_file"
    assert not (tmp_path / "y").exists()


def test_a_new_type_is_written_once_and_can_be_used(tmp_path: Path) -> None:
    bring(
        tmp_path, "a", "name: clerk\ndescription: x\ntools: Bash(echo *), Edit\n"
        "disallowedTools: Edit(docs/private)\nskills: greet\npermissionMode: acceptEdits\nmaxTurns: 7\n"
        "isolation: worktree\nmodel: opus\neffort: max\n",
    )  # fmt: skip
    old = find(tmp_path, "clerk")
    path = write_new(tmp_path, "scribe", old, 'writes: "all" \u2014 # docs')
    new = find(tmp_path, "scribe")
    assert new == replace(old, name="scribe", summary=new.summary, file=new.file, sha256=new.sha256)
    assert (new.summary, new.file) == ('writes: "all" \u2014 # docs', ".crewboard/agents/scribe.md")
    for name, why in (
        ("scribe", "edit .crewboard/agents/scribe.md, or"),
        ("code", "built-in type"),
        ("lead", "cannot name"),
        ("A", "a-z"),
    ):
        with pytest.raises(UsageError, match=why):
            write_new(tmp_path, name, old, "x")
    with pytest.raises(UsageError, match="only a lead has"):
        write_new(tmp_path, "boss", TYPES["lead"], "x")
    path.with_name("odd.md").write_text("kept")
    with pytest.raises(UsageError, match="exists already"):
        write_new(tmp_path, "odd", old, "x")
    assert path.with_name("odd.md").read_text() == "kept"
    for kind in TYPES.values():
        if not set(kind.tools) & {*LEAD_TOOLS}:
            write_new(tmp_path, f"my-{kind.name}", kind, kind.summary)
            again = find(tmp_path, f"my-{kind.name}")
            assert (again.tools, again.model, again.effort, again.thinking, again.prompt) == (
                kind.tools, kind.model, kind.effort, kind.thinking, kind.prompt
            )  # fmt: skip
            assert not again.not_understood


def test_no_new_type_is_written_through_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "root"
    root.mkdir()
    (root / ".crewboard").symlink_to(outside)
    with pytest.raises(StorageError, match="links are not followed"):
        write_new(root, "scribe", TYPES["code"], "x")
    assert not list(outside.iterdir())
