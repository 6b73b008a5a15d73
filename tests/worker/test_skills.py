"""Skills: listed by name and description, loaded on demand, their scripts run in the sandbox."""

import asyncio
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from crewboard import skill_files, type_files
from crewboard.commands import messages
from crewboard.commands.hire import Assignment
from crewboard.records.events import ToolResult
from crewboard.type_files import find
from crewboard.untrusted import undelimit_data
from crewboard.worker.tools import file_server, skills
from crewboard.worker.tools.base import Context, FileToolClient, Outcome
from crewboard.worker.tools.workspace import MAX_FILE, Workspace
from tests.crew import WAIT_TIMEOUT, Crew
from tests.model import calls, says

pytestmark = pytest.mark.files_only("what the user accepted is kept apart from teams")

SKILL = "---\nname: {0}\ndescription: how to {0}\n{1}---\n# {0}\n\nRun say.sh.\n"


def make(folder: Path, name: str, more: str = "") -> Path:
    made = folder / name
    made.mkdir(parents=True)
    (made / "SKILL.md").write_text(SKILL.format(name, more))
    (made / "say.sh").write_text("echo said by $(basename $PWD)\n")
    return made


@pytest.fixture(scope="module", autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what is accepted in a folder of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def crew(shared_crew: Crew) -> Crew:
    """Return the shared team; its workspace begins without skills."""
    shutil.rmtree(shared_crew.root / ".claude/skills", ignore_errors=True)
    return shared_crew


def accept(crew: Crew, name: str) -> None:
    root = crew.directory.root
    skill_files.accept(skill_files.find(root, name), root, crew.environment)


def told(crew: Crew, name: str) -> list[str]:
    """Return the names of the skills of which an agent was told in its last request."""
    *_, last = crew.model.asked_by(name)
    texts = [block["text"] for block in last["messages"][0]["content"] if block["type"] == "text"]
    listed = [text for text in texts if text.startswith('<data from="skills" type="skills"')]
    return [line.split()[1].rstrip(":") for text in listed for line in undelimit_data(text).splitlines()[1:]]


def test_a_skill_is_used_as_the_user_accepted_it(crew: Crew) -> None:
    folder = crew.root / ".claude/skills"
    for name in ("release", "planted", "linked"):
        make(folder, name)
    make(folder, "private", "disable-model-invocation: true\n")
    (folder / "out").symlink_to("/etc")
    accept(crew, "release")
    accept(crew, "private")
    accept(crew, "linked")
    (folder / "linked/more.md").symlink_to(folder / "planted/SKILL.md")
    crew.model.give(
        "releaser",
        calls("skill", name="release"),
        calls("skill", name="release", file="./say.sh"),
        calls("skill", name="release", file="../planted/SKILL.md"),
        calls("skill", name="planted"),
        calls("skill", name="linked", file="more.md"),
        calls("bash", command="bash .claude/skills/release/say.sh"),
        says("done"),
    )
    crew.run("releaser", "test", "release it", unsafe_no_sandbox=True)
    assert told(crew, "releaser") == ["release"]
    results = [event for event in crew.events("releaser") if isinstance(event, ToolResult)]
    loaded, file, out, planted, linked, ran = (each.content for each in results)
    assert "# release" in loaded
    assert "Its other files: say.sh. Read one with file. Its folder is .claude/skills/release" in loaded
    assert file.startswith("echo said")
    assert "has no file ../planted/SKILL.md" in out
    assert "has not accepted it" in planted
    assert "has not accepted it" in linked
    assert ran.startswith("said by ")


@pytest.mark.long
def test_a_changed_skill_is_not_told_until_accepted(crew: Crew) -> None:
    made = make(crew.root / ".claude/skills", "house")
    accept(crew, "house")
    first, second = (made / "SKILL.md").read_text(), SKILL.format("house", "") + "changed by an agent"
    expected = []
    crew.model.give("teller", *(says(str(at)) for at in range(5)))
    for at, (text, extra, yes) in enumerate(
        [(first, "", False), (second, "", False), (second, "", True), (first, "", False), (second, "x", False)]
    ):
        (made / "SKILL.md").write_text(text)
        (made / "say.sh").write_text(extra)
        if not at or yes:
            accept(crew, "house")
        sent = crew.hire("teller", "explore", "look") if not at else messages.send(crew.team, "teller", "again")
        crew.answer(sent) if isinstance(sent, Assignment) else crew.answer_to("teller", sent.id)
        expected.append(told_now(crew, "teller"))
    # Neither a change, nor the text that was accepted before, nor another file comes without a yes.
    assert expected == [True, False, True, False, False]


def told_now(crew: Crew, name: str) -> bool:
    """Return True if the agent has a list of skills now: that of its last update counts."""
    texts = [str(each) for event in crew.events(name) for each in (getattr(event, "updates", None) or {}).items()]
    lists = [text for text in texts if "the list of skills" in text]
    return "how to house" in lists[-1] if lists else bool(told(crew, name))


def test_a_type_loads_only_accepted_skills(crew: Crew) -> None:
    made = make(crew.root / ".claude/skills", "style")
    (types := crew.root / ".crewboard/agents").mkdir(parents=True, exist_ok=True)
    (types / "stylist.md").write_text(
        "---\nname: stylist\ndescription: x\ntools: Read\nskills: style\n---\nBe short.\n"
    )
    type_files.accept(find(crew.root, "stylist"), crew.environment)
    accept(crew, "style")
    (made / "SKILL.md").write_text("CHANGED BY AN AGENT")
    crew.model.give("stylist", says("done"))
    crew.run("stylist", "stylist", "look")
    (asked,) = crew.model.asked_by("stylist")
    assert "CHANGED BY AN AGENT" not in str(asked)
    assert "The skill style is not loaded" in str(asked)


@pytest.mark.long
def test_an_import_is_told_as_the_user_accepted_it(crew: Crew) -> None:
    root = crew.directory.root
    (root / "CLAUDE.md").write_text("Use tabs. @notes/style.md @AGENTS.md")
    (root / "AGENTS.md").write_text("Protected from agents.")
    (root / "notes").mkdir(exist_ok=True)
    (root / "notes/style.md").write_text("Short lines. @more.md")
    (root / "notes/more.md").write_text("By an agent.")
    crew.model.give("importer", says("one"), says("two"), says("three"))
    crew.run("importer", "explore", "look")
    (first,) = crew.model.asked_by("importer")
    assert "Protected from agents." in str(first)
    assert "CLAUDE.md imports notes/style.md, which is left out" in str(first)
    assert "Short lines." not in str(first)
    accept(crew, "@notes/style.md")
    crew.answer_to("importer", messages.send(crew.team, "importer", "again").id)
    told = [update for event in crew.events("importer") for update in (getattr(event, "updates", None) or {}).values()]
    assert "Short lines." in told[-1]
    assert "notes/style.md imports notes/more.md, which is left out" in told[-1]
    (root / "notes/style.md").write_text("Changed by an agent.")
    crew.answer_to("importer", messages.send(crew.team, "importer", "again").id)
    assert "Changed by an agent." not in str(crew.model.asked_by("importer"))
    for name in ("CLAUDE.md", "AGENTS.md"):
        (root / name).unlink()


def test_skills_are_listed_once_per_assignment(crew: Crew) -> None:
    made = make(crew.root / ".claude/skills", "steady")
    accept(crew, "steady")
    changed = SKILL.format("steady", "").replace("how to", "another way to")
    crew.model.give(
        "lister", calls("write_file", path=".claude/skills/steady/SKILL.md", content=changed), says("done"), says("two")
    )
    crew.run("lister", "code", "change it", unsafe_no_sandbox=True)
    assert (made / "SKILL.md").read_text() == changed
    *_, last = crew.model.asked_by("lister")
    assert "another way to steady" not in str(last["messages"][0])
    assert "list of skills has" not in str(last["messages"])


def listing(workspace: Path) -> str:
    return asyncio.run(skills.listing(cast("FileToolClient", None), workspace))


def test_the_list_of_skills_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for at in range(60):
        (folder := skills.users_folder() / f"s{at:02}").mkdir(parents=True)
        (folder / "SKILL.md").write_text(f"---\ndescription: {'x' * 400}\n---\n")
    listed = listing(tmp_path / "root")
    assert len(listed) < skills.MAX_LIST + 200
    assert listed.endswith("more, not listed)")
    (skills.users_folder() / "s00/SKILL.md").write_text(f"---\na: {'x' * skills.MAX_FRONT}\ndescription: long\n---\n")
    assert "- s00" not in listing(tmp_path / "root"), "a long front matter takes long to read"


def test_mail_is_answered_while_skills_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    make(skills.users_folder(), "slow")
    answered = threading.Event()

    def read_slowly(_text: str, _most: int) -> tuple[dict[str, object], str]:
        return {"description": answered.wait(WAIT_TIMEOUT)}, ""

    monkeypatch.setattr(type_files, "front_matter", read_slowly)

    async def list_and_answer() -> str:
        asyncio.get_running_loop().call_later(0, answered.set)
        return await skills.listing(cast("FileToolClient", None), tmp_path / "root")

    assert asyncio.run(list_and_answer()).endswith("- slow: True")


def load(context: object, **given: str) -> Outcome:
    return asyncio.run(skills.skill.run(cast("Context", context), skills.Skill(**given)))


def test_a_user_s_skill_is_copied_to_where_commands_find_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    made = make(skills.users_folder(), "deploy")
    (made / "say.sh").chmod(0o755)
    (tmp_path / "secret").write_text("secret")
    (made / "linked").symlink_to(tmp_path / "secret")
    scratch, workspace = tmp_path / "scratch", tmp_path / "root"
    scratch.mkdir()
    workspace.mkdir()
    assert skills.exist(workspace)
    assert asyncio.run(skills.listing(cast("FileToolClient", None), workspace)).endswith("\n- deploy: how to deploy")

    def context(folder: Path | None) -> SimpleNamespace:
        return SimpleNamespace(
            file_tools=SimpleNamespace(sandbox=SimpleNamespace(policy=SimpleNamespace(scratch=folder))),
            team=SimpleNamespace(root=workspace),
        )

    assert f"Its folder is {scratch}/skills/deploy" in load(context(scratch), name="deploy").content
    copy = scratch / "skills/deploy"
    assert sorted(path.name for path in copy.iterdir()) == ["SKILL.md", "say.sh"]
    assert stat.S_IMODE((copy / "say.sh").stat().st_mode) & 0o100
    assert "Its folder" not in load(context(None), name="deploy").content
    assert load(context(None), name="deploy", file="say.sh").content.startswith("echo said")
    for file in ("linked", "../../../../secret", "none"):
        assert load(context(None), name="deploy", file=file).is_error


def in_folder(workspace: Path) -> Any:  # noqa: ANN401  no client
    """Return what the tool asks of the client of an agent that works in this folder."""

    async def ask(_: str, given: dict[str, Any]) -> Outcome:
        return Outcome(file_server.read_skills(Workspace(workspace, workspace), **given))

    policy = SimpleNamespace(root=workspace.parent, folder=workspace.name)
    return SimpleNamespace(ask=ask, sandbox=SimpleNamespace(policy=policy))


def test_a_skill_that_the_checkout_lacks_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    root, checkout = tmp_path / "root", tmp_path / "checkout"
    make(checkout / ".claude/skills", "own")
    for name in ("own", "untracked"):
        make(root / ".claude/skills", name)
        (root / ".claude/skills" / name / "new").touch()
        skill_files.accept(skill_files.find(root, name), root, os.environ)
    make(root / ".claude/skills", "new")
    context = SimpleNamespace(file_tools=in_folder(checkout), team=SimpleNamespace(root=root))
    said = {name: load(context, name=name) for name in ("own", "untracked", "new")}
    assert all(each.is_error for each in said.values())
    assert "not accepted it as it is in your checkout" in said["own"].content
    assert said["untracked"].content == "The skill untracked is not in your checkout, so it is not loaded."
    assert (
        said["new"].content == "The skill new is not loaded: there is none of that name. Give a name as it is listed."
    )


def test_a_skill_that_is_not_there_is_said_to_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / ".claude/skills"
    make(folder, "new")
    (folder / "linked").symlink_to(folder / "new")
    (folder / "empty").mkdir()
    context = SimpleNamespace(file_tools=in_folder(tmp_path), team=SimpleNamespace(root=tmp_path))
    said = {name: load(context, name=name) for name in ("new", "linked", "empty", "none")}
    assert all(each.is_error for each in said.values())
    assert "the user has not accepted it" in said["new"].content
    assert "it is a link" in said["linked"].content
    for name in ("empty", "none"):
        assert (
            said[name].content
            == f"The skill {name} is not loaded: there is none of that name. Give a name as it is listed."
        )


def test_a_user_s_empty_folder_hides_no_skill_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (skills.users_folder() / "deploy").mkdir(parents=True)
    root = tmp_path / "root"
    make(root / ".claude/skills", "deploy")
    skill_files.accept(skill_files.find(root, "deploy"), root, os.environ)

    class Files:
        async def ask(self, _: str, given: dict[str, Any]) -> Outcome:
            return Outcome(file_server.read_skills(Workspace(root, tmp_path), **given))

    client = cast("FileToolClient", Files())
    assert "- deploy: how to deploy" in asyncio.run(skills.listing(client, root))
    assert "# deploy" in asyncio.run(skills.load_text(client, root, "deploy"))
    context = SimpleNamespace(file_tools=client, team=SimpleNamespace(root=root))
    assert "# deploy" in load(context, name="deploy").content


def test_a_large_skill_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with (make(skills.users_folder(), "huge") / "data").open("wb") as file:
        file.truncate(skill_files.MAX_BYTES + 1)
    policy = SimpleNamespace(scratch=tmp_path / "scratch")
    file_tools = SimpleNamespace(sandbox=SimpleNamespace(policy=policy))
    outcome = load(SimpleNamespace(file_tools=file_tools, team=SimpleNamespace(root=tmp_path)), name="huge")
    assert outcome.is_error
    assert "more than 500 files" in outcome.content


def test_the_file_server_reads_what_can_be_accepted() -> None:
    """It has limits of its own, so that it starts without the modules that know these."""
    own = file_server.MAX_SKILL, file_server.MAX_SKILL_FILES, file_server.SKILL_LEAVES_OUT
    assert own == (skill_files.MAX_BYTES, skill_files.MAX_FILES, skill_files.LEFT_OUT)


def test_a_skill_is_no_larger_than_a_file_that_can_be_read() -> None:
    assert skill_files.MAX_BYTES == MAX_FILE
