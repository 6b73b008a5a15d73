"""Recognize files of a workspace that the user's own programs run, or take commands from, outside of every sandbox."""

import fnmatch
import posixpath
import re

from crewboard.untrusted import as_run

EVERYTHING = "everything in the workspace"
"""The name of the whole workspace where a plan is shown."""

RUNS = "runs on your machine"
"""The warning beside files and commands that this module recognizes."""

_RUN_BY_NAME = (
    # Shells, and what they load when a folder is entered or a terminal opens.
    ".envrc", ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile", ".zshrc",
    ".zshenv", ".zprofile", ".zlogin", ".kshrc", ".cshrc", ".tcshrc", ".login", "config.fish", ".inputrc", ".tmux.conf",
    ".xinitrc", ".xprofile", ".mise.toml", "mise.toml", ".tool-versions", "flake.nix", "shell.nix", "default.nix",
    # Editors and debuggers.
    "*.code-workspace", ".vimrc", ".nvimrc", ".exrc", ".nvim.lua", ".dir-locals.el", ".emacs", ".gdbinit", ".lldbinit",
    # Builds.
    "makefile", "gnumakefile", "*.mk", "cmakelists.txt", "*.cmake", "meson.build", "configure", "configure.ac",
    "justfile", ".justfile", "taskfile.y*ml", "rakefile", "gemfile", "vagrantfile", "dockerfile*", "containerfile*",
    "*compose*.y*ml", "build.gradle*", "settings.gradle*", "gradlew", "mvnw", "pom.xml", "build.sbt", "build.rs",
    "cargo.toml", "*.csproj", "directory.build.*", "build.zig", "build.bazel", "workspace.bazel",
    # Python: the test runner and the package tools import or execute them.
    "conftest.py", "setup.py", "setup.cfg", "pyproject.toml", "pytest.ini", "tox.ini", "noxfile.py", "fabfile.py",
    "dodo.py", "sitecustomize.py", "usercustomize.py", "*.pth",
    # JavaScript.
    "package.json", ".npmrc", ".yarnrc", ".yarnrc.yml", ".pnpmfile.*", "gruntfile.*", "gulpfile.*", "*.config.js",
    "*.config.cjs", "*.config.mjs", "*.config.ts", "*.config.mts", ".eslintrc*", ".prettierrc*", ".babelrc*",
    # Other agents follow these.
    "claude.md", "claude.local.md", "agents.md", "gemini.md", ".cursorrules", ".windsurfrules", ".clinerules",
    # Version control and CI.
    ".gitattributes", ".gitmodules", ".gitconfig", ".pre-commit-config.yaml", "lefthook.y*ml", ".lefthook.y*ml",
    ".lintstagedrc*", ".gitlab-ci.yml", ".travis.yml", "appveyor.yml", ".appveyor.yml", "azure-pipelines.yml",
    "bitbucket-pipelines.yml", "jenkinsfile*", ".drone.yml", ".woodpecker.yml",
)  # fmt: skip
"""Patterns of names, in lower case, that the user's shell, editor, build or CI runs or takes commands from."""

_RUN_BY_FOLDER = frozenset({
    ".git", ".githooks", "githooks", ".husky", ".vscode", ".idea", ".fleet", ".zed", ".devcontainer", ".github",
    ".forgejo", ".gitea", ".gitlab", ".circleci", ".buildkite", ".cargo", ".direnv", ".venv", "venv", "node_modules",
    ".claude", ".cursor",
})  # fmt: skip
"""Folders in which every file may be run, or give commands."""

_MAKES_REPOSITORY = r"\bgit\b[^;&|\n]*\s(?:init|clone|worktree|submodule)\b|(?<![\w-])\.git(?:/|(?![\w.-]))"
"""Commands that make a repository, or write into one. When the user runs git there, git runs the settings and hooks of
the repository.
"""

_PROSE = frozenset({
    ".adoc", ".htm", ".html", ".markdown", ".md", ".org", ".po", ".pot", ".rst", ".srt", ".tex", ".txt", ".vtt",
})  # fmt: skip
"""Suffixes of the names of files that only people read."""


def runs_on_your_machine(path: str) -> bool:
    """Return True if the user's own shell, editor, build or CI may run a file, or take commands from it.

    They do so outside of the sandbox, with the rights of the user. Only the name of the file is checked. The whole
    workspace (`.`, or `EVERYTHING`) counts as such a file.
    """
    path = posixpath.normpath(path.strip()).lower() if path.strip() else ""
    parts = path.split("/")
    if path in (".", EVERYTHING):
        return True
    if not _RUN_BY_FOLDER.isdisjoint(parts):
        return True
    return any(fnmatch.fnmatchcase(parts[-1], pattern) for pattern in _RUN_BY_NAME)


def makes_repository(command: str) -> bool:
    """Return True if a command seems to make a git repository, or names a git directory."""
    return re.search(_MAKES_REPOSITORY, command) is not None


def is_prose(path: str) -> bool:
    """Return True if by its name only people read a file, and no program takes commands from it."""
    return posixpath.splitext(path)[1].lower() in _PROSE and not runs_on_your_machine(path)


def diff_as_run(diff: str) -> str:
    """Return a unified diff with the marks of `untrusted.as_run`, except in files of prose."""
    lines = diff.split("\n")
    in_prose = False
    for at, line in enumerate(lines):
        # No line of a file begins so: each has a sign before it. The names of a single file are the first two lines.
        if line.startswith("diff --git ") or (at < 2 and line.startswith(("--- ", "+++ "))):  # noqa: PLR2004
            in_prose = is_prose(line.rstrip('"'))
            lines[at] = as_run(line)
        elif not in_prose:
            lines[at] = as_run(line)
    return "\n".join(lines)
