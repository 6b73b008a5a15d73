"""The Files tab of an agent: what it changed, and which other agents have the file open."""

import gc
import sys
from types import FrameType

import pytest

from crewboard.executed_files import makes_repository, runs_on_your_machine
from crewboard.readmodel.file_activity import IN_USE, FileAccess, FileAccessReader, FileActivity
from crewboard.records.agents import Work
from crewboard.records.base import JsonValue, convert
from crewboard.records.requests import Request
from crewboard_tui.views.activity import file_rows
from crewboard_tui.views.requests.base import plan_impact_lines
from tests.frozen import NOW, Frozen
from tests.tui.stage import Stage, opened

ROUTES = "src/api/routes.py"


def _edit(old: str, new: str, path: str = ROUTES) -> dict[str, object]:
    return {"path": path, "old_text": old, "new_text": new}


async def _open_files(stage: Stage) -> None:
    stage.app.open_agent("api", "Files")
    await stage.turns_to("Files")


async def test_changes_stand_newest_first_with_their_counts(frozen: Frozen) -> None:
    frozen.did("api", 8, "write_file", {"path": "src/new.py", "content": "a\nb\n"}, "created src/new.py (2 lines)", 0)
    frozen.did("api", 6, "edit_file", _edit("one\ntwo\n", "one\nthree\nfour\n"), "edited", 0)
    async with opened(frozen, 80, 24) as stage:
        await _open_files(stage)
        await stage.sees("edit  +2 −1     src/api/routes.py", "write +2 −0     src/new.py")
        assert stage.all.index("+2 −1") < stage.all.index("+2 −0")


async def test_each_form_of_an_edit_has_a_diff(frozen: Frozen) -> None:
    pairs = [{"old_text": "one\n", "new_text": "uno\n"}, {"old_text": "two\n", "new_text": ""}]
    frozen.did("api", 9, "edit_file", {"path": "a.py", "edits": pairs}, "edited", 0)
    frozen.did("api", 8, "edit_file", {"path": "b.py", "diff": "@@ -3 +3,2 @@\n-three\n+drei\n+tre\n"}, "edited", 0)
    frozen.did("api", 7, "edit_file", {"path": "c.py", "diff": "no diff"}, "edited", 0)
    async with opened(frozen, 80, 24) as stage:
        await _open_files(stage)
        await stage.sees("edit  +1 −2     a.py", "edit  +2 −1     b.py", "c.py")
        await stage.press("o")
        await stage.sees("-one", "+uno", "-two", "-three", "+tre")


async def test_enter_unfolds_the_diff_and_folds_it_again(frozen: Frozen) -> None:
    frozen.did("api", 6, "edit_file", _edit("def old():\n    pass\n", "def new():\n    pass\n"), "edited", 0)
    async with opened(frozen, 80, 24) as stage:
        await _open_files(stage)
        await stage.sees("+1 −1")
        assert "def new" not in stage.all
        await stage.can("⏎", "unfold")
        await stage.press("enter")
        await stage.sees("-def old():", "+def new():")
        assert "@@" not in stage.all, "its line numbers would be those of the piece, not of the file"
        await stage.press("j", "j", "enter")
        await stage.sees_not("+def new():")


@pytest.mark.long
async def test_key_labels_say_what_they_do_to_the_selected_entry(frozen: Frozen) -> None:
    frozen.did("api", 6, "edit_file", _edit("def old():\n    pass\n", "def new():\n    pass\n"), "edited", 0)
    async with opened(frozen, 80, 24) as stage:
        await _open_files(stage)
        await stage.can("⏎", "unfold")
        await stage.can("o", "unfold all")
        await stage.press("enter")
        await stage.can("⏎", "fold")
        await stage.can("o", "unfold all")
        await stage.press("G")
        await stage.can("⏎", "unfold")
        await stage.press("o")
        await stage.can("⏎", "fold")
        await stage.can("o", "fold all")
        await stage.press("o")
        await stage.can("⏎", "unfold")
        await stage.can("o", "unfold all")


async def test_a_change_that_failed_is_no_change(frozen: Frozen) -> None:
    frozen.did("ui", 6, "edit_file", _edit("x", "y", "gone.py"), "Error: there is no file gone.py", 0)
    touches = FileAccessReader(frozen.directory.agent("ui")).read()
    assert not touches


async def test_who_else_has_it_open_is_said_and_a_clash_warns(frozen: Frozen) -> None:
    frozen.did("release", 60, "edit_file", _edit("a", "b", f"./{ROUTES}"), "edited", 0)
    frozen.did("ui", 120, "read_file", {"path": ROUTES}, "(48 lines)", 0)
    async with opened(frozen, 80, 24) as stage:
        await _open_files(stage)
        await stage.sees("also open by", "⚠ release, ui")
        await stage.press("enter")
        await stage.sees("release changed it 1m ago", "ui read it 2m ago")


async def test_what_was_written_over_is_not_guessed(frozen: Frozen) -> None:
    frozen.did("ui", 60, "write_file", {"path": "a.py", "content": "1\n"}, "replaced a.py (1 line)", 0)
    frozen.did("ui", 50, "write_file", {"path": "a.py", "content": "2\n"}, "replaced a.py (1 line)", 0)
    first, second = FileAccessReader(frozen.directory.agent("ui")).read()
    assert first.removed is None
    assert (second.added, second.removed) == (1, 1), "its own text of before is known"


def test_what_was_open_long_ago_is_open_no_more(frozen: Frozen) -> None:
    frozen.did("ui", IN_USE + 60, "read_file", {"path": ROUTES}, "(48 lines)", 0)
    assert not FileActivity(FileAccessReader(frozen.directory.agent("ui")).read()).others(ROUTES, "api", NOW)


def test_reading_goes_on_where_it_stopped(frozen: Frozen) -> None:
    reader = FileAccessReader(frozen.directory.agent("ui"))
    reader.read()
    frozen.did("ui", 60, "edit_file", _edit("a", "b"), "edited", 0)
    assert len(reader.read()) == 1
    assert len(reader.read()) == 1


async def _open_plan(stage: Stage) -> None:
    await stage.press("j", "a")
    await stage.sees("PLAN v2")


@pytest.mark.long
async def test_a_plan_says_which_of_its_files_others_have_open(frozen: Frozen) -> None:
    frozen.did("api", 60, "edit_file", _edit("a", "b", "settings.py"), "edited", 0)
    frozen.did("ui", 90, "read_file", {"path": "keys/ring.py"}, "(9 lines)", 0)
    async with opened(frozen, 80, 36) as stage:
        await _open_plan(stage)
        await stage.sees("FILES     5 · 2 also open in api, ui  ⚠ overlap", "COMMANDS  bash: alembic upgrade")
        await stage.settles()
        await stage.press("G")
        await stage.sees("Files it names", "api changed it 1m ago")


@pytest.mark.long
async def test_a_plan_says_which_plans_name_its_files(frozen: Frozen) -> None:
    status = frozen.directory.agent("api").status.load()
    assert status is not None
    work = Work(planned=["keys/"], planned_at=NOW - 60)
    frozen.directory.agent("api").status.save(status.replace(work=work))
    async with opened(frozen, 80, 36) as stage:
        await _open_plan(stage)
        await stage.sees("⚠ PLANS   the approved plan of api names keys/ring.py, too")


@pytest.mark.long
async def test_reading_alone_is_no_overlap(frozen: Frozen) -> None:
    frozen.did("ui", 90, "read_file", {"path": "keys/ring.py"}, "(9 lines)", 0)
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.sees("FILES     5 · 1 also open in ui")
        assert "overlap" not in stage.all


@pytest.mark.parametrize(
    ("files", "words"),
    [(["a.py"], "1 · also open in api, ui"), (["a.py", "b.py"], "2 · 1 also open")],
)
def test_a_count_of_files_reads_as_one(files: list[str], words: str) -> None:
    request = convert(
        {"id": "q", "type": "plan_approval", "from": "docs", "to": "operator", "payload": {"files": files}}, Request
    )
    touched = FileActivity([FileAccess(NOW - 9, name, "a.py", "read") for name in ("api", "ui")])
    said = "".join(span.text for span in plan_impact_lines(request, touched, NOW)[0])
    assert words in said


@pytest.mark.long
async def test_a_plan_of_files_that_no_agent_has_open_says_so(frozen: Frozen) -> None:
    frozen.did("auth-plan", 90, "read_file", {"path": "keys/ring.py"}, "(9 lines)", 0)
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.sees("FILES     5 · not open elsewhere")


def test_a_folder_is_open_where_a_file_in_it_is(frozen: Frozen) -> None:
    frozen.did("ui", 60, "edit_file", _edit("a", "b", "src/deep/a.py"), "edited", 0)
    touched = FileActivity(FileAccessReader(frozen.directory.agent("ui")).read())
    assert touched.others("src/", "api", NOW)
    assert not touched.others("sr", "api", NOW)


def test_changes_come_before_reads_and_the_last_change_counts() -> None:
    touched = FileActivity(
        [
            FileAccess(NOW - 10, "ui", "a.py", "read"),
            FileAccess(NOW - 90, "ui", "a.py", "edit"),
            FileAccess(NOW - 60, "ui", "a.py", "edit"),
            FileAccess(NOW - 5, "docs", "a.py", "read"),
            FileAccess(NOW - 1, "api", "a.py", "edit"),
        ]
    )
    found = [(touch.agent, NOW - touch.ts, touch.kind) for touch in touched.others("./a.py", "api", NOW)]
    assert found == [("ui", 60, "edit"), ("docs", 5, "read")]


def test_a_path_of_slashes_is_a_path() -> None:
    touched = FileActivity([FileAccess(NOW - 1, "ui", path, "edit") for path in ("//x", "//", "/", ".", "", "../up/x")])
    assert [touch.path for touch in touched.others("../up", "api", NOW)] == ["../up/x"]


def test_much_reading_pushes_no_change_out(frozen: Frozen) -> None:
    frozen.did("ui", 900, "edit_file", _edit("a", "b"), "edited", 0)
    for number in range(400):
        frozen.did("ui", 800 - number, "read_file", {"path": "README.md"}, "(9 lines)", 0)
    touches = FileAccessReader(frozen.directory.agent("ui")).read()
    assert [touch.path for touch in touches if touch.changed] == [ROUTES]


def test_a_change_keeps_its_key_when_older_ones_are_forgotten(frozen: Frozen) -> None:
    reader = FileAccessReader(frozen.directory.agent("ui"))
    for number in range(300):
        frozen.did("ui", 900 - number, "edit_file", _edit("a", f"{number}"), "edited", 0)
    before = file_rows(FileActivity(reader.read()), "ui", NOW, 80)[0]
    frozen.did("ui", 5, "edit_file", _edit("a", "newest"), "edited", 0)
    after = file_rows(FileActivity(reader.read()), "ui", NOW, 80)
    assert [fold.key for fold in after].index(before.key) == 1
    assert len({fold.key for fold in after}) == 300


def test_many_changes_of_many_agents_are_painted_quickly() -> None:
    names = [f"a-{number}" for number in range(8)]
    everything = [
        FileAccess(NOW - 300 + number, name, f"src/{number}.py", kind)
        for name in names for number in range(300) for kind in ("read", "edit")
    ]  # fmt: skip
    touched = FileActivity(everything)
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    # A collection would also call what the dashboards of other tests left to be called.
    gc.disable()
    sys.setprofile(count)
    folds = file_rows(touched, "a-0", NOW, 80)
    sys.setprofile(None)
    gc.enable()
    assert len(folds) == 300
    assert calls / len(folds) < 500, "each change looked at all others"


@pytest.mark.parametrize(
    "path",
    [
        ".envrc", "sub/.envrc", ".vscode/tasks.json", "Makefile", "lib/rules.mk", "tests/conftest.py", "package.json",
        "setup.py", "pyproject.toml", ".github/workflows/ci.yml", ".gitlab-ci.yml", ".husky/pre-commit", ".husky",
        "x.code-workspace", ".bashrc", ".git/hooks/pre-push", "vite.config.ts", ".venv/bin/git", "./Cargo.toml",
        ".pre-commit-config.yaml", "Dockerfile", ".devcontainer/devcontainer.json", "a.pth",
        "src/AGENTS.md", "CLAUDE.md", ".cursor/rules/a.mdc",
    ],
)  # fmt: skip
def test_files_that_the_users_own_tools_run_are_known(path: str) -> None:
    assert runs_on_your_machine(path)


@pytest.mark.parametrize("path", ["src/app.py", "README.md", "notes/makefile.md", "build", "tests/test_a.py", ""])
def test_ordinary_files_are_not_marked(path: str) -> None:
    assert not runs_on_your_machine(path)


async def test_the_plan_page_marks_what_runs_on_your_machine(frozen: Frozen) -> None:
    plan: dict[str, JsonValue] = {"plan": "# Build", "files": ["src/a.py", "Makefile", ".husky/pre-commit"]}
    frozen.asks("req-1", "plan_approval", "api", 10, plan)
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("plan:api:req-1")
        await stage.sees("MACHINE   runs on your machine: Makefile · .husky/pre-commit")
        await stage.press("G")
        await stage.settles()
        marked = [line for line in stage.text if line.rstrip("│ ").endswith("runs on your machine")]
        assert [line.split()[0] for line in marked] == ["Makefile", ".husky/pre-commit"]


async def test_a_plan_for_the_root_says_everything(frozen: Frozen) -> None:
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": "# Build", "files": ["."]})
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("plan:api:req-1")
        await stage.sees("MACHINE   runs on your machine: everything in the workspace")


async def test_a_permission_to_write_what_runs_on_your_machine_says_so(frozen: Frozen) -> None:
    call: dict[str, JsonValue] = {
        "tool": "write_file",
        "input": {"path": ".envrc", "content": "x"},
        "summary": ".envrc",
    }
    frozen.asks("perm-1", "permission", "release", 22, call)
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("permission:release:perm-1")
        await stage.sees("MACHINE   runs on your machine: .envrc")


@pytest.mark.parametrize(
    ("command", "marked"),
    [
        ("git init sub", True),
        ("cd x && git -C y clone -q ../z", True),
        ("git submodule add ./other", True),
        ("cp settings sub/.git/config", True),
        ("echo gitdir: x > sub/.git", True),
        ("git status", False),
        ("cat .gitignore .github/x", False),
        ("echo git; npm init", False),
        ("git commit -m 'clones less'", False),
    ],
)
def test_a_command_that_makes_a_repository_is_known(command: str, marked: bool) -> None:
    assert makes_repository(command) is marked


@pytest.mark.long
async def test_a_permission_to_make_a_repository_says_that_it_runs_on_your_machine(frozen: Frozen) -> None:
    call: dict[str, JsonValue] = {"tool": "bash", "input": {"command": "git init sub"}, "summary": "git init sub"}
    frozen.asks("perm-1", "permission", "release", 22, call)
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("permission:release:perm-1")
        await stage.sees("MACHINE   runs on your machine: git init sub")


@pytest.mark.long
async def test_the_files_tab_marks_what_runs_on_your_machine(frozen: Frozen) -> None:
    frozen.did("api", 5, "write_file", {"path": "Makefile", "content": "all:"}, "created Makefile", 0)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("j", "j", "j", "j", "j", "enter", "]", "]", "]")
        await stage.turns_to("Files")
        await stage.sees("Makefile")
        (row,) = (line for line in stage.text if "Makefile" in line)
        assert "runs on your machine" in row
