"""Tests that the user's git runs nothing that an agent chose.

Each attack is one command, or one call of a file tool, after which the user runs git in the workspace. The program that
git would run only leaves a mark.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from crewboard.sandbox import bubblewrap, git, shell
from crewboard.sandbox.git import GitFiles, GitGuard, git_files
from crewboard.sandbox.host_paths import HostPaths
from crewboard.sandbox.level import Level
from crewboard.sandbox.policy import Policy
from crewboard.sandbox.sandbox import Sandbox
from crewboard.unix import process
from tests.crew import WAIT_TIMEOUT, eventually
from tests.sandbox.conftest import LEVELS, need
from tests.sandbox.targets import Targets, run
from tests.sandbox.test_file_server import ask_file_server
from tests.system import need_program

SETTINGS = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tfsmonitor = {evil}\n"


@dataclass(frozen=True)
class Project:
    """A workspace with a repository, the user's home, and the mark that a program of an agent would leave."""

    base: Path

    @property
    def root(self) -> Path:
        return self.base / "project"

    @property
    def evil(self) -> Path:
        return self.root / "src/evil"

    @property
    def mark(self) -> Path:
        return self.base / "mark"

    def git(self, *arguments: str, folder: Path | None = None, check: bool = True) -> str:
        """Run git as the user does."""
        done = subprocess.run(
            ["git", "-c", "protocol.file.allow=always", *arguments],
            cwd=folder or self.root, capture_output=True, text=True, check=check, timeout=20,
            env={"PATH": os.environ["PATH"], "HOME": str(self.base / "home"), "GIT_EDITOR": "true"},
        )  # fmt: skip
        return done.stdout

    def settings(self, path: Path) -> None:
        """Write settings that make git run the agent's program."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SETTINGS.format(evil=self.evil))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    need_program("git")
    made = Project(Path(os.path.realpath(tmp_path)))
    monkeypatch.setenv("HOME", str(made.base / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (made.root / "src").mkdir(parents=True)
    (made.base / "home").mkdir()
    (made.base / "home/.gitconfig").write_text("[user]\n\tname = x\n\temail = x@y.invalid\n")
    made.evil.write_text(f"#!/bin/sh\necho ran > {made.mark}\n")
    made.evil.chmod(0o755)
    made.git("init", "-q", "-b", "main")
    made.git("add", "src")
    made.git("commit", "-q", "-m", "first")
    # What an agent may have prepared: a git directory of its own making.
    made.git("init", "-q", "--bare", str(made.root / "src/bare"))
    made.settings(made.root / "src/bare/config")
    (made.root / ".crewboard/default/results").mkdir(parents=True)
    (made.root / ".crewboard/.gitignore").write_text("*\n")
    return made


def sandbox_of(targets: Targets, level: Level, project: Project) -> Sandbox:
    sandbox = targets.sandbox("code", level)
    policy = replace(sandbox.policy, root=project.root, host=HostPaths.of_this_machine())
    return replace(sandbox, policy=policy, results=project.root / ".crewboard/default/results")


Patch = Callable[[pytest.MonkeyPatch], None]


def _none(project: Project) -> None:
    """Change nothing."""


def _submodule(project: Project) -> None:
    other = project.base / "other"
    project.git("init", "-q", str(other))
    project.git("commit", "-q", "--allow-empty", "-m", "first", folder=other)
    project.git("submodule", "--quiet", "add", str(other), "src/lib/sub")
    project.git("commit", "-q", "-m", "a submodule")


def _submodule_not_checked_out(project: Project) -> None:
    _submodule(project)
    project.git("submodule", "--quiet", "deinit", "-f", "src/lib/sub")


def _linked_worktree(project: Project) -> None:
    project.git("worktree", "add", "-q", "../linked")


def _worktree_settings(project: Project) -> None:
    project.git("config", "extensions.worktreeConfig", "true")


def _no_settings(project: Project) -> None:
    (project.root / ".git/config").unlink()


def _hooks_elsewhere(project: Project) -> None:
    (project.root / "src/hooks").mkdir()
    project.git("config", "core.hooksPath", "src/hooks")


def _hooks_to_come(project: Project) -> None:
    project.git("config", "core.hooksPath", "src/tools/hooks")


def _users_hooks(project: Project) -> None:
    project.git("config", "--global", "core.hooksPath", "src/hooks")


def _hooks_linked(project: Project) -> None:
    (project.root / "src/hooks").mkdir()
    hooks = project.root / ".git/hooks"
    hooks.rename(project.base / "hooks")
    hooks.symlink_to("../src/hooks")


def _included(project: Project) -> None:
    (project.root / "src/settings").write_text("")
    project.git("config", "include.path", "../src/settings")


def _included_by_condition(project: Project) -> None:
    project.git("config", f"includeIf.gitdir:{project.root}/.path", "../src/more/settings")


def _included_by_included(project: Project) -> None:
    (project.root / "src/settings").write_text("[include]\n\tpath = deeper/settings\n")
    project.git("config", "--global", "include.path", str(project.root / "src/settings"))


def _monitor(project: Project) -> None:
    monitor = project.root / "src/monitor"
    monitor.write_text("#!/bin/sh\n")
    monitor.chmod(0o755)
    project.git("config", "core.fsmonitor", "src/monitor")


def _program_with_arguments(project: Project) -> None:
    (project.root / "src/clean.sh").write_text("cat\n")
    (project.root / ".gitattributes").write_text("*.txt filter=x\n")
    (project.root / "src/a.txt").write_text("a\n")
    project.git("config", "filter.x.clean", "sh src/clean.sh --fast")


def _nested(project: Project) -> None:
    project.git("init", "-q", "src/nested")


def _worktree_of_a_repository_far_below(project: Project) -> None:
    project.git("init", "-q", "src/a/b/c")
    below = project.root / "src/a/b/c"
    project.git("commit", "-q", "--allow-empty", "-m", "first", folder=below)
    project.git("worktree", "add", "-q", str(project.root / "src/linked"), folder=below)


def _missing_monitor(project: Project) -> None:
    project.git("config", "core.fsmonitor", "src/tools/monitor")


def _included_filter(project: Project) -> None:
    (project.root / "src/settings").write_text(
        '[filter "x"]\n\tclean = sh src/clean.sh\n[filter "y"]\n\tclean = src/tools/clean\n'
    )
    (project.root / "src/clean.sh").write_text("cat\n")
    project.git("config", "include.path", "../src/settings")


def _worktree_of_a_worktree(project: Project) -> None:
    project.git("config", "extensions.worktreeConfig", "true")
    project.git("worktree", "add", "-q", "src/w")
    project.git("worktree", "add", "-q", "../a/b/c", folder=project.root / "src/w")


def _redirect_left(project: Project) -> None:
    (project.root / ".git/commondir").write_text("../src/bare\n")


def _redirect_pipe_left(project: Project) -> None:
    os.mkfifo(project.root / ".git/commondir")


def _project_file(project: Project) -> None:
    (project.root / "CLAUDE.md").write_text("Use tabs.\n")


def _project_file_linked(project: Project) -> None:
    (project.root / "src/about.md").write_text("Use tabs.\n")
    (project.root / "AGENTS.md").symlink_to("src/about.md")


def _no_head(project: Project) -> None:
    (project.root / ".git/HEAD").rename(project.base / "HEAD")
    for name in ("objects", "refs"):
        (project.root / name).mkdir()


@dataclass(frozen=True)
class Attack:
    """A command of an agent after which the user's git must not run the agent's program."""

    name: str
    command: str
    arrange: Callable[[Project], None] = _none
    then: tuple[str, ...] = ("status",)
    folder: str = "."


PLANT = "echo '#!/bin/sh' > {0} && echo 'exec {{evil}}' >> {0}; chmod +x {0}"
BARE = "cp -r src/bare/. .; git config -f config core.worktree {root}"
EMBED = (
    "git clone -q src/bare src/new; cp src/bare/config src/new/.git/config;"
    " cd src/new && git -c core.fsmonitor= -c user.name=x"
    " -c user.email=x commit -q --allow-empty -m x; cd ../..; "
)
SUBMODULE = (
    "git init -q --bare .git/modules/m; mkdir src/sub; cp src/bare/config .git/modules/m/config;"
    " git config -f .git/modules/m/config core.worktree ../../../src/sub;"
    " commit=$(cd .git/modules/m && git -c core.fsmonitor= -c user.name=x -c user.email=x commit-tree -m x"
    " $(git mktree < /dev/null)); git --git-dir .git/modules/m update-ref refs/heads/main $commit;"
    " git config -f .gitmodules submodule.m.path src/sub; git config -f .gitmodules submodule.m.url ./none;"
    " git update-index --add --cacheinfo 160000,$commit,src/sub"
)
COMMIT = ("commit", "--allow-empty", "-m", "x")

ATTACKS = [
    Attack("an embedded repository in the index",
           EMBED + "git add src/new"),
    Attack("a bare repository in place of .git", "rm .git/HEAD; " + BARE),
    Attack("a bare repository beside an invalid .git", "mv .git/objects .git/o; " + BARE),
    Attack("commondir", "rm -f .git/commondir; echo ../src/bare > .git/commondir"),
    Attack("commondir as a link", "ln -sf ../src/redirect .git/commondir; echo ../src/bare > src/redirect"),
    Attack("commondir that was there", "true", _redirect_left),
    Attack("commondir as a pipe", "(for i in 1 2 3 4 5 6 7 8 9; do timeout 1 bash -c"
           " 'echo ../src/bare > .git/commondir'; sleep 0.2; done &)", _redirect_pipe_left),
    Attack("commondir of a linked worktree", "echo {root}/src/bare > .git/worktrees/linked/commondir",
           _linked_worktree, folder="../linked"),
    Attack("settings of a worktree", "cp src/bare/config .git/config.worktree", _worktree_settings),
    Attack("settings where there were none", "cp src/bare/config .git/config", _no_settings),
    Attack("settings replaced", "mv .git/config .git/old; cp src/bare/config .git/config"),
    Attack("the .git file of a submodule", "echo gitdir: ../../bare > src/lib/sub/.git", _submodule),
    Attack("a submodule moved away", "mv src/lib src/old; mkdir -p src/lib/sub;"
           " echo gitdir: ../../bare > src/lib/sub/.git", _submodule),
    Attack("a submodule that is not checked out", "echo gitdir: ../../bare > src/lib/sub/.git",
           _submodule_not_checked_out),
    Attack("settings of a submodule", "cp src/bare/config .git/modules/src/lib/sub/config", _submodule),
    Attack("an unfinished rebase", "mkdir .git/rebase-merge; cd .git/rebase-merge; git rev-parse HEAD | tee onto"
           " orig-head; echo refs/heads/main > head-name; touch interactive done message;"
           " echo exec {evil} > git-rebase-todo", then=("rebase", "--continue")),
    Attack("an included file", "cp src/bare/config src/settings", _included),
    Attack("an included file that is missing", "mkdir -p src/more; cp src/bare/config src/more/settings",
           _included_by_condition),
    Attack("a file included by an included file", "mkdir -p src/deeper; cp src/bare/config src/deeper/settings",
           _included_by_included),
    Attack("a hook elsewhere", PLANT.format("src/hooks/pre-commit"), _hooks_elsewhere, COMMIT),
    Attack("a hook in a folder of the user's settings", "mkdir src/hooks; " + PLANT.format("src/hooks/pre-commit"),
           _users_hooks, COMMIT),
    Attack("a hook elsewhere by moving the folder", "mv src/hooks src/old; mkdir src/hooks; "
           + PLANT.format("src/hooks/pre-commit"), _hooks_elsewhere, COMMIT),
    Attack("a hook in a missing folder", "mkdir -p src/tools/hooks; " + PLANT.format("src/tools/hooks/pre-commit"),
           _hooks_to_come, COMMIT),
    Attack("a hook through a link", PLANT.format("src/hooks/pre-commit"), _hooks_linked, COMMIT),
    Attack("a file monitor", "cp src/evil src/monitor", _monitor),
    Attack("a program with arguments", "cp src/evil src/clean.sh", _program_with_arguments, ("add", "src/a.txt")),
    Attack("settings of a repository below", "cp src/bare/config src/nested/.git/config", _nested,
           folder="src/nested"),
    Attack("settings of the repository of a linked worktree", "cp src/bare/config src/a/b/c/.git/config",
           _worktree_of_a_repository_far_below, folder="src/linked"),
    Attack("an embedded repository in an index behind a link",
           EMBED + "cp .git/index src/i; GIT_INDEX_FILE=src/i git add src/new; ln -sf ../src/i .git/index"),
    Attack("a submodule that git has not made yet", SUBMODULE, then=("submodule", "update", "--init")),
    Attack("a filter that only an included file defines",
           "cp src/evil src/clean.sh; echo '*.txt filter=x' > .gitattributes; echo a > src/a.txt",
           _included_filter, ("add", "src/a.txt")),
    Attack("a filter that is missing and that only an included file defines",
           "mkdir src/tools; cp src/evil src/tools/clean; echo '*.txt filter=y' > src/.gitattributes;"
           " echo a > src/a.txt",
           _included_filter, ("add", "src/a.txt")),
    Attack("the .git file of a worktree of a worktree", "echo gitdir: {root}/src/bare > src/a/b/c/.git",
           _worktree_of_a_worktree, folder="src/a/b/c"),
    Attack("settings of a worktree of a worktree", "cp src/bare/config .git/worktrees/c/config.worktree",
           _worktree_of_a_worktree, folder="src/a/b/c"),
    Attack("a file monitor that is missing", "mkdir -p src/tools; cp src/evil src/tools/monitor", _missing_monitor),
]  # fmt: skip


ON_LANDLOCK = {
    "a bare repository in place of .git", "commondir", "commondir of a linked worktree", "settings replaced",
    "the .git file of a submodule", "an unfinished rebase", "an included file that is missing", "a hook elsewhere",
    "a program with arguments", "an embedded repository in an index behind a link",
}  # fmt: skip
"""One attack for each way in which the rules of git's files hold at this level; `make test-long` makes all."""

LIKE_ANOTHER = {
    "a submodule moved away", "a submodule that is not checked out", "an embedded repository in the index",
    "settings of a worktree of a worktree", "the .git file of a worktree of a worktree",
    "settings of the repository of a linked worktree", "a file included by an included file",
    "a filter that is missing and that only an included file defines", "a hook elsewhere by moving the folder",
    "a hook in a missing folder", "a file monitor",
}  # fmt: skip
"""Attacks on what the rule of another attack protects, too: only `make test-long` makes them in bubblewrap."""


def is_long(level: str, attack: Attack) -> bool:
    return attack.name in LIKE_ANOTHER if level == "bubblewrap" else attack.name not in ON_LANDLOCK


def text_of(attack: Attack, project: Project) -> str:
    return attack.command.format(root=project.root, evil=project.evil)


@pytest.mark.parametrize(
    ("level", "attack"),
    [
        pytest.param(
            level, attack, id=f"{level}-{attack.name.replace(' ', '_')}",
            marks=[pytest.mark.long] if is_long(level, attack) else [],
        )
        for level in LEVELS
        for attack in ATTACKS
    ],
    indirect=["level"],
)  # fmt: skip
def test_git_runs_nothing_of_an_agent(targets: Targets, level: Level, project: Project, attack: Attack) -> None:
    attack.arrange(project)
    run(sandbox_of(targets, level, project), text_of(attack, project))
    project.git(*attack.then, folder=project.root / attack.folder, check=False)
    assert not project.mark.exists()


@pytest.mark.long
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name.replace(" ", "_"))
def test_each_attack_succeeds_without_protection(project: Project, attack: Attack) -> None:
    attack.arrange(project)
    # A pipe is read at the right moment or not, so an attack may need a second attempt.
    for _ in range(50):
        attacker = subprocess.Popen(["bash", "-c", text_of(attack, project)], cwd=project.root, start_new_session=True,
                                    env={"PATH": os.environ["PATH"], "HOME": str(project.base / "home")})  # fmt: skip
        attacker.wait(20)
        project.git(*attack.then, folder=project.root / attack.folder, check=False)
        # What it left in the background would write into the pipe of the next attempt as well.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(attacker.pid, signal.SIGKILL)
        if project.mark.exists():
            break
    assert project.mark.exists()


DATA = {
    "a bundle with a .git in its tree": (
        (
            "cd src; git init -q x; cd x; b=$(git hash-object -w ../evil);"
            " t=$(printf '100755 blob %s\\tpost-checkout\\n' $b | git mktree);"
            " t=$(printf '040000 tree %s\\thooks\\n' $t | git mktree);"
            " t=$(printf '040000 tree %s\\t.git\\n' $t | git mktree);"
            " git update-ref refs/heads/x $(git -c user.name=x -c user.email=x commit-tree -m x $t);"
            " git bundle create -q ../x.bundle x; cd ..; rm -rf x"
        ),
        "src/x.bundle",
        [["fetch", "-q", "src/x.bundle", "x:x"], ["checkout", "-q", "x"]],
    ),
    "a bundle in place of a remote": (
        "git bundle create -q src/x.bundle main; cp src/x.bundle .git/FETCH_HEAD; cp src/x.bundle .git/x_HEAD",
        "src/x.bundle",
        [["fetch", "-q", "src/x.bundle"], ["fetch"], ["merge", "FETCH_HEAD"], ["status"]],
    ),
    "objects of another repository": (
        (
            "git -C src/bare config remote.o.url {root}/src; git -C src/bare config remote.o.uploadpack {evil};"
            " git -C src/bare config remote.o.promisor true; git -C src/bare config extensions.partialClone o;"
            " git -C src/bare config core.repositoryformatversion 1;"
            " git -C src/bare config core.alternateRefsCommand {evil};"
            " mkdir -p src/bare/refs/heads; echo 1234567890123456789012345678901234567890 > src/bare/refs/heads/main;"
            " mkdir -p .git/objects/info; echo {root}/src/bare/objects > .git/objects/info/alternates"
        ),
        ".git/objects/info/alternates",
        [["fetch", "-q", "../other"], ["status"], ["fsck"], ["gc", "-q"], ["log", "--all"]],
    ),
}


@pytest.mark.parametrize(("command", "made", "then"), DATA.values(), ids=DATA.keys())
def test_data_of_an_agent_makes_git_run_nothing(
    targets: Targets, level: Level, project: Project, command: str, made: str, then: list[list[str]]
) -> None:
    """Objects can come from elsewhere, but what git reads there are no settings and no programs."""
    project.git("init", "-q", "../other")
    project.git("commit", "-q", "--allow-empty", "-m", "first", folder=project.base / "other")
    run(sandbox_of(targets, level, project), command.format(root=project.root, evil=project.evil))
    assert (project.root / made).exists() or level == "landlock"
    for words in then:
        project.git(*words, check=False)
    assert not project.mark.exists()
    assert "evil" not in " ".join(path.name for path in (project.root / ".git/hooks").iterdir())


WHILE_IT_RUNS = {
    "commondir": ("rm -f .git/commondir; echo ../src/bare > .git/commondir", False),
    "commondir by another name": ("echo ../src/bare > .git/x; mv -f .git/x .git/commondir", False),
    "settings": ("cp src/bare/config .git/config", False),
    "a bare repository": ("rm .git/HEAD; " + BARE, True),
    "an embedded repository": (ATTACKS[0].command, True),
}


@pytest.mark.parametrize(("command", "ended_early"), WHILE_IT_RUNS.values(), ids=WHILE_IT_RUNS.keys())
def test_git_runs_nothing_of_an_agent_while_a_command_runs(
    targets: Targets, level: Level, project: Project, command: str, ended_early: bool
) -> None:
    """A command that plants what no mount forbids is ended, so it never waits for the user's git."""
    seen = project.root / "src/seen"
    outcome: list[str] = []
    waits = f"{command}; touch src/ready; for i in $(seq 500); do [ -e src/seen ] && exit; sleep 0.02; done"
    sandbox = sandbox_of(targets, level, project)
    running = threading.Thread(target=lambda: outcome.append(run(sandbox, waits.format(root=project.root)).content))
    running.start()
    try:
        eventually(lambda: (project.root / "src/ready").exists() or bool(outcome), "the attack")
        # At landlock nothing can be planted, so the command waits. Else it waits only if nothing was.
        if ended_early and level == "bubblewrap":
            eventually(lambda: bool(outcome), "the end of the command")
        project.git("status", check=False)
    finally:
        seen.touch()
        running.join()
    assert not project.mark.exists()


def interrupt(sandbox: Sandbox, text: str, ready: Path) -> None:
    """Run a command until it has made the file `ready`, then interrupt it, as the user does."""

    async def work() -> None:
        running = asyncio.ensure_future(shell.run(text, sandbox, 60, set(process.descendants(os.getpid()))))
        await asyncio.to_thread(eventually, lambda: ready.exists() or running.done(), "the command")
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(work())


def test_an_interrupted_command_leaves_nothing_that_git_runs(targets: Targets, level: Level, project: Project) -> None:
    (rebase,) = (attack for attack in ATTACKS if attack.name == "an unfinished rebase")
    text = text_of(rebase, project)
    ready = project.root / "src/ready"
    interrupt(sandbox_of(targets, level, project), f"({text}); echo x > AGENTS.md; touch {ready}; sleep 30", ready)
    project.git(*rebase.then, check=False)
    assert not project.mark.exists()
    assert not (project.root / "AGENTS.md").exists()


def test_a_command_ends_when_the_user_changes_settings_that_it_could_then_change_too(
    targets: Targets, level: Level, project: Project
) -> None:
    """The kernel removes a mount when a process outside replaces the file below it, as git does."""
    outcome: list[str] = []
    text = "touch src/ready; while [ ! -e src/seen ]; do sleep 0.02; done; cp src/bare/config .git/config"
    sandbox = sandbox_of(targets, level, project)
    running = threading.Thread(target=lambda: outcome.append(run(sandbox, text).content))
    running.start()
    try:
        eventually(lambda: (project.root / "src/ready").exists() or bool(outcome), "the command")
        project.git("config", "user.name", "y")
        if level == "bubblewrap":
            eventually(lambda: bool(outcome), "the end of the command")
    finally:
        (project.root / "src/seen").touch()
        running.join()
    assert level == "landlock" or "config was replaced outside the sandbox" in outcome[0]
    project.git("status")
    assert not project.mark.exists()


@pytest.mark.long
def test_no_number_of_folders_and_repositories_hides_another(project: Project) -> None:
    repositories = [project.root / f"src/r{number}/.git" for number in range(510)]
    for number in range(2100):
        (project.root / f"src/r{number}").mkdir()
    for git_file in repositories:
        git_file.write_text("gitdir: nowhere\n")
    assert {project.root / ".git/config", *repositories} <= set(git_files(project.root).kept)


def test_an_index_too_large_to_look_into_is_put_aside(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    with GitGuard(project.root) as guard:
        monkeypatch.setattr(git, "_MAX_INDEX", 10)
        assert guard.planted() == [project.root / ".git/index"]
        assert guard.put_aside() == [".git/index"]


WRITTEN = {
    "the .git file of a submodule": (_submodule, "src/lib/sub/.git"),
    "an included file": (_included, "src/settings"),
    "an included file that is missing": (_included_by_condition, "src/more/settings"),
    "a file included by an included file": (_included_by_included, "src/deeper/settings"),
    "a hook elsewhere": (_hooks_elsewhere, "src/hooks/pre-commit"),
    "a hook in a missing folder": (_hooks_to_come, "src/tools/hooks/pre-commit"),
    "a hook through a link": (_hooks_linked, "src/hooks/pre-commit"),
    "a file monitor": (_monitor, "src/monitor"),
    "a file monitor that is missing": (_missing_monitor, "src/tools/monitor"),
    "a bare repository": (_no_head, "HEAD"),
    "a redirect": (_none, ".git/commondir"),
    "the project's file": (_project_file, "CLAUDE.md"),
    "the project's file by a link": (_project_file_linked, "AGENTS.md"),
    "a project's file that is missing": (_none, "CLAUDE.md"),
}


@pytest.mark.parametrize(("arrange", "path"), WRITTEN.values(), ids=WRITTEN.keys())
def test_file_tools_do_not_write_what_git_runs(
    targets: Targets, project: Project, arrange: Callable[[Project], None], path: str
) -> None:
    arrange(project)
    before = (project.root / path).read_text() if (project.root / path).exists() else None
    answers = ask_file_server(
        sandbox_of(targets, "none", project),
        ("write_file", {"path": path, "content": "x\n"}),
        ("edit_file", {"path": path, "old_text": "a", "new_text": "b"}),
    )
    assert [answer.is_error for answer in answers] == [True, True]
    assert ((project.root / path).read_text() if (project.root / path).exists() else None) == before


def test_a_redirect_is_gone_after_the_last_of_several_commands(project: Project) -> None:
    redirect = project.root / ".git/commondir"
    with GitGuard(project.root):
        with GitGuard(project.root):
            assert redirect.read_text() == ".\n"
        assert redirect.read_text() == ".\n"
        assert "On branch main" in project.git("status")
    assert not redirect.exists()


def test_a_rebase_of_the_user_stays(targets: Targets, level: Level, project: Project) -> None:
    state = project.root / ".git/rebase-merge"
    state.mkdir()
    (state / "git-rebase-todo").write_text("pick 1\n")
    outcome = run(sandbox_of(targets, level, project), "echo x > .git/rebase-merge/git-rebase-todo")
    assert "renamed" not in outcome.content
    assert (state / "git-rebase-todo").read_text() == "pick 1\n"


def test_a_command_in_the_background_leaves_git_to_the_user(targets: Targets, level: Level, project: Project) -> None:
    """It may run for hours: a rebase and settings of the user in that time are no plant of the agent."""
    state, go = project.root / ".git/rebase-merge", project.root / "go"
    text = f"echo x > .git/new; echo x >> .git/config; echo up; until [ -e {go} ]; do sleep 0.02; done; git log"

    async def follow() -> shell.CommandResult:
        command = shell.BackgroundCommand(text, sandbox_of(targets, level, project), 60, set())
        while "up" not in command.read():
            await command.wait(WAIT_TIMEOUT)
        state.mkdir()
        project.git("config", "user.note", "mine")
        go.touch()
        while command.result is None:
            await command.wait(WAIT_TIMEOUT)
            command.read()
        return command.result

    before = (project.root / ".git/config").read_text()
    result = asyncio.run(follow())
    assert result.ending == "[exit code 0]"
    assert state.is_dir()
    assert not (project.root / ".git/new").exists()
    assert (project.root / ".git/config").read_text().startswith(before.rstrip("x\n"))
    assert "note = mine" in (project.root / ".git/config").read_text()


def _change_project_file(targets: Targets, level: Level, project: Project) -> str:
    """Let a command try to change the project's file and to make another; return what it is told."""
    _project_file(project)
    tries = ("echo x >> CLAUDE.md", "rm -f CLAUDE.md", "mv src/evil CLAUDE.md", "echo x > AGENTS.md")
    return run(sandbox_of(targets, level, project), "; ".join(tries)).content


def test_no_command_changes_the_projects_file(targets: Targets, level: Level, project: Project) -> None:
    told = _change_project_file(targets, level, project)
    assert (project.root / "CLAUDE.md").read_text() == "Use tabs.\n"
    assert not (project.root / "AGENTS.md").exists()
    assert level == "landlock" or "[renamed AGENTS.md" in told


@pytest.mark.parametrize("rule", ["_keep", "reserved"])
def test_without_keeping_the_projects_file(
    targets: Targets, works: dict[Level, str | None], project: Project, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    need("bubblewrap", works)
    if rule == "_keep":
        monkeypatch.setattr(git._Search, "_keep", lambda self, path, is_folder: None)
    else:
        monkeypatch.setattr(GitGuard, "put_aside", lambda self: [])
    _change_project_file(targets, "bubblewrap", project)
    is_changed = (project.root / "CLAUDE.md").read_text() != "Use tabs.\n" or (project.root / "AGENTS.md").exists()
    assert is_changed


def test_what_cannot_be_protected_is_told(project: Project) -> None:
    assert git_files(project.root).unprotected == ()
    project.git("config", "core.hooksPath", ".")
    (project.root / "linked").symlink_to("src")
    project.git("config", "include.path", "../linked/settings")
    told = git_files(project.root).unprotected
    assert [text.partition(": ")[0].partition(", ")[0] for text in sorted(told)] == [
        f"{project.root}/linked/settings is or passes a symbolic link",
        f"git runs programs of {project.root}",
    ]


def test_a_workspace_below_a_repository_is_not_made_one(targets: Targets, level: Level, project: Project) -> None:
    below = replace(sandbox_of(targets, level, project).policy, root=project.root / "src")
    sandbox = replace(sandbox_of(targets, level, project), policy=below)
    run(sandbox, "git init -q; cp bare/config .git/config")
    project.git("status", folder=project.root / "src")
    assert not project.mark.exists()


def _no_placeholder(patch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> int:
        raise OSError(str(path))

    patch.setattr(git, "_placed", refuse)
    patch.setattr(GitGuard, "planted", lambda self: [])


MUTANTS: dict[str, tuple[Patch, Level, str]] = {
    "mounts": (
        lambda patch: patch.setattr(bubblewrap, "_kept", lambda policy, private: []), "bubblewrap", "a hook elsewhere",
    ),
    "mounts of folders above": (
        lambda patch: patch.setattr(bubblewrap, "held_folders", lambda paths, root: []),
        "bubblewrap", "a submodule moved away",
    ),
    "placeholders": (
        lambda patch: patch.setattr(GitFiles, "make_missing", lambda self, root: None),
        "bubblewrap", "a hook in a missing folder",
    ),
    "the harmless commondir": (_no_placeholder, "bubblewrap", "commondir"),
    "the look for planted files": (
        lambda patch: patch.setattr(GitGuard, "planted", lambda self: []),
        "bubblewrap", "an embedded repository in the index",
    ),
    "moving aside": (
        lambda patch: patch.setattr(GitGuard, "put_aside", lambda self: []), "bubblewrap", "an unfinished rebase",
    ),
    "the gaps in what is granted": (
        lambda patch: patch.setattr(Policy, "git_files", lambda self: GitFiles()), "landlock", "a hook elsewhere",
    ),
    "included files": (
        lambda patch: patch.setattr(git._Search, "_keep", lambda self, path, is_folder: None),
        "bubblewrap", "an included file",
    ),
    "programs in settings": (
        lambda patch: patch.setattr(git._Search, "_programs", lambda self, name, value, tree: None),
        "bubblewrap", "a file monitor",
    ),
    "repositories below": (
        lambda patch: patch.setattr(git, "folders_below", lambda root: []),
        "bubblewrap", "settings of a repository below",
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("mutate", "level", "attack"), MUTANTS.values(), ids=MUTANTS.keys())
def test_without_a_rule_for_git(
    targets: Targets,
    works: dict[Level, str | None],
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    mutate: Patch,
    level: Level,
    attack: str,
) -> None:
    need(level, works)
    (tried,) = (each for each in ATTACKS if each.name == attack)
    tried.arrange(project)
    mutate(monkeypatch)
    run(sandbox_of(targets, level, project), text_of(tried, project))
    project.git(*tried.then, folder=project.root / tried.folder, check=False)
    assert project.mark.exists()


def test_without_the_list_for_the_file_tools(
    targets: Targets, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    _included(project)
    monkeypatch.setattr(Policy, "git_files", lambda self: GitFiles())
    given = {"path": "src/settings", "content": SETTINGS.format(evil=project.evil)}
    assert not ask_file_server(sandbox_of(targets, "none", project), ("write_file", given))[0].is_error
    project.git("status")
    assert project.mark.exists()
