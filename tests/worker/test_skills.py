"""Skills: listed by name and description, loaded on demand, their scripts run in the sandbox."""

import asyncio
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from crewboard.records import ToolResult
from crewboard.untrusted import undelimit_data
from crewboard.worker.tools import skills
from crewboard.worker.tools.base import Context, FileToolClient, Outcome
from tests.crew import Crew
from tests.model import calls, says

SKILL = "---\nname: {0}\ndescription: how to {0}\n{1}---\n# {0}\n\nRun say.sh.\n"


def make(folder: Path, name: str, more: str = "") -> Path:
    made = folder / name
    made.mkdir(parents=True)
    (made / "SKILL.md").write_text(SKILL.format(name, more))
    (made / "say.sh").write_text("echo said by $(basename $PWD)\n")
    return made


@pytest.mark.long
def test_a_project_s_skill_is_listed_loaded_and_run(shared_crew: Crew) -> None:
    folder = shared_crew.root / ".claude/skills"
    make(folder, "release")
    make(folder, "private", "disable-model-invocation: true\n")
    (folder / "broken").mkdir()
    (folder / "broken/SKILL.md").write_text("---\n: [\n---\n")
    (folder / "out").symlink_to("/etc")
    shared_crew.model.give(
        "releaser",
        calls("skill", name="release"),
        calls("skill", name="release", file="say.sh"),
        calls("skill", name="release", file="../../../outside"),
        calls("skill", name="relaese"),
        calls("bash", command="bash .claude/skills/release/say.sh"),
        says("done"),
    )
    shared_crew.run("releaser", "test", "release it", unsafe_no_sandbox=True)
    (first, *_) = shared_crew.model.asked_by("releaser")
    listed = first["messages"][0]["content"][0]["text"]
    assert listed.startswith('<data from="skills" type="skills"')
    assert undelimit_data(listed).splitlines()[1:] == ["- release: how to release"]
    assert "how to release" not in str(first["system"])
    results = [event for event in shared_crew.events("releaser") if isinstance(event, ToolResult)]
    loaded, file, out, missing, ran = (each.content for each in results)
    assert "# release" in loaded
    assert "Its other files: say.sh. Read one with file. Its folder is .claude/skills/release" in loaded
    assert file.startswith("echo said")
    assert "paths with .. are not allowed" in out
    assert "did you mean .claude/skills/release" in missing
    assert ran.startswith("said by ")


def load(context: object, **given: str) -> Outcome:
    return asyncio.run(skills.SKILL.run(cast("Context", context), skills.Skill(**given)))


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
            file_tools=SimpleNamespace(sandbox=SimpleNamespace(policy=SimpleNamespace(scratch=folder)))
        )

    assert f"Its folder is {scratch}/skills/deploy" in load(context(scratch), name="deploy").content
    copy = scratch / "skills/deploy"
    assert sorted(path.name for path in copy.iterdir()) == ["SKILL.md", "say.sh"]
    assert stat.S_IMODE((copy / "say.sh").stat().st_mode) & 0o100
    assert "Its folder" not in load(context(None), name="deploy").content
    assert load(context(None), name="deploy", file="say.sh").content.startswith("echo said")
    for file in ("linked", "../../../../secret", "none"):
        assert load(context(None), name="deploy", file=file).is_error


def test_a_large_skill_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with (make(skills.users_folder(), "huge") / "data").open("wb") as file:
        file.truncate(skills.MAX_BYTES + 1)
    policy = SimpleNamespace(scratch=tmp_path / "scratch")
    outcome = load(SimpleNamespace(file_tools=SimpleNamespace(sandbox=SimpleNamespace(policy=policy))), name="huge")
    assert outcome.is_error
    assert "more than 500 files" in outcome.content
