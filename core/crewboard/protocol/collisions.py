"""Collisions: which agents changed the same file, and which of their files others may not change.

A worker's status has the files that its file tools changed in the last assignment, and `collisions.json` has the
results of git for agents with worktrees. Two agents with worktrees collide if their unmerged work does not merge; any
other two collide if both changed a file while the assignments of both were open. Changes by commands in the shared tree
are not known, and the setting `collisions` does not limit them.
"""

import posixpath
import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from itertools import combinations

from msgspec import Struct

from crewboard.executed_files import EVERYTHING, makes_repository, runs_on_your_machine
from crewboard.records.agents import StepNames, Undone, Work, Worktree
from crewboard.records.base import JsonValue
from crewboard.records.requests import Request, lines_of, step_lines
from crewboard.records.team import Collisions, matches_path
from crewboard.store import roster
from crewboard.store.json_records import cached_file
from crewboard.store.layout import TeamDirectory


class Collision(Struct, frozen=True):
    """Two agents, by name, and the files in which they collide; `since` is when the last of these was added."""

    agents: tuple[str, str]
    files: tuple[str, ...]
    since: float
    in_worktrees: bool = False
    """True if both agents have worktrees, and their work does not merge."""

    def other(self, name: str) -> str:
        """Return the name of the agent that collides with `name`."""
        return self.agents[1] if name == self.agents[0] else self.agents[0]


class AgentWork(Struct, frozen=True):
    """The known work of one agent, in its own worktree or in the shared tree."""

    name: str
    work: Work
    has_worktree: bool = False


def without_undone(work: Work, undone: Undone | None) -> Work:
    """Return the work without files whose changes were reversed, which are in `undone`."""
    ids = set(undone.changes) if undone is not None else set()
    left = {path: at for path, at in work.files.items() if work.newest.get(path) not in ids}
    return work if len(left) == len(work.files) else work.replace(files=left)


def find_collisions(agents: Iterable[AgentWork], recorded: Collisions) -> tuple[Collision, ...]:
    """Return the collisions between these agents, the newest last; `recorded` are those that git found."""
    known = {each.name: each for each in agents}
    found = [
        Collision(pair.agents, tuple(pair.files), pair.since, in_worktrees=True)
        for pair in recorded.pairs
        if pair.files and all(name in known and known[name].has_worktree for name in pair.agents)
    ]
    shared: dict[tuple[str, str], dict[str, float]] = {}
    users: dict[str, list[AgentWork]] = {}
    for agent in known.values():
        for path in agent.work.files:
            users.setdefault(path, []).append(agent)
    for path, several in users.items():
        for one, other in combinations(several, 2):
            at = max(one.work.files[path], other.work.files[path])
            ends = [each.work.ended for each in (one, other) if each.work.ended is not None]
            if not (one.has_worktree and other.has_worktree) and at < min(ends, default=at + 1):
                first, second = sorted((one.name, other.name))
                shared.setdefault((first, second), {})[path] = at
    found += [Collision(names, tuple(sorted(files)), max(files.values())) for names, files in shared.items()]
    return tuple(sorted(found, key=lambda each: (each.since, each.agents)))


class Objection(Struct, frozen=True):
    """Why an agent should not change a file now. If it `asks`, the operator may allow the change, else no one."""

    text: str
    asks: bool


def find_objection(
    team: TeamDirectory, name: str, file: str, own: Work | None, last_change: float | None
) -> Objection | None:
    """Return why the agent `name` should not change `file` with a file tool, by the team's setting `collisions`.

    None if nothing is against the change. `file` is a path from the workspace's root, `own` is what the agent itself
    changed and planned, and `last_change` is when the agent last changed this file, None if it has not. The check is
    cheap enough for each tool call: only statuses that changed since the last check are read.
    """
    config = roster.load(team)
    if config.collisions == "warn":
        return None
    own = own or Work()
    others = [_Other.read(team, each) for each in config.names if each != name]
    if config.collisions == "claims":
        holder = next((each.name for each in others if each.claims(file, name, own)), None)
        if holder is None:
            return None
        told = f"ask {holder} with send_message, or tell {config.reports_to(name)}"
        why = f"{holder} holds {file} until its result, because its approved plan names it"
        return Objection(f"{why}. Change another file, {told}.", asks=False)
    recorded = cached_file(team.collisions).get() or Collisions()
    lacks = [(each.name, each.lacks(file, own, last_change, recorded)) for each in others]
    said = "; ".join(f"{other} changed it in work that is not {what}" for other, what in lacks if what)
    return Objection(said, asks=True) if said else None


class _Other(Struct, frozen=True):
    """Another agent of the team: its work, its checkout, and the root of its workspace."""

    name: str
    work: Work
    worktree: Worktree | None
    root: str

    @classmethod
    def read(cls, team: TeamDirectory, name: str) -> "_Other":
        agent = team.agent(name)
        spec, status = cached_file(agent.spec).get(), cached_file(agent.status).get()
        work = without_undone((status.work if status is not None else None) or Work(), cached_file(agent.undone).get())
        worktree = spec.worktree if spec is not None else None
        root = team.worktree(name) / worktree.folder if worktree is not None else team.root
        return cls(name, work, worktree, str(root))

    def claims(self, file: str, asking: str, own: Work) -> bool:
        """Return True if this agent's approved plan names a file, and no earlier plan of the agent `asking` does."""
        if not self._names(self.work, file):
            return False
        return not self._names(own, file) or (self.work.planned_at, self.name) < (own.planned_at, asking)

    def _names(self, work: Work, file: str) -> bool:
        return work.ended is None and any(names_file(each, file, self.root) for each in work.planned)

    def lacks(self, file: str, own: Work, last_change: float | None, recorded: Collisions) -> str:
        """Return what this agent's work on a file still has to be: `finished` or `merged`; empty if neither.

        Also empty if the asking agent changed the file later than this one, in its present assignment: that was allowed
        before.
        """
        theirs, mine = self.work.files.get(file), last_change if file in own.files else None
        unmerged = recorded.unmerged.get(self.name) if self.worktree is not None else None
        in_repository = f"{self.worktree.folder}/{file}".lstrip("/") if self.worktree is not None else file
        if theirs is not None and self.work.ended is None:
            what = "finished"
        elif unmerged is not None and in_repository in unmerged.files:
            what = "merged"
        else:
            return ""
        return "" if mine is not None and (theirs is None or mine >= theirs) else what


def names_file(named: str, path: str, root: str) -> bool:
    """Return True if a plan's entry `named` is the file at `path`, or a folder that contains the file.

    Both are absolute, or relative to `root`. False for an entry that leads out of `root`, or that has `..`.
    """
    planned = path_of_entry(named, root)
    if planned is None:
        return False
    named, path = (posixpath.normpath(posixpath.join(root, each)) for each in (planned, path))
    return path == named or path.startswith(named.rstrip("/") + "/")


def path_of_entry(named: str, root: str) -> str | None:
    """Return the path from `root` that a plan's entry names, `.` for the root; None if it is not below the root.

    None also for an entry with `..`, which reads as one folder and names another.
    """
    named = named.strip()
    if not named or ".." in named.split("/"):
        return None
    root = posixpath.normpath(root)
    path = posixpath.normpath(posixpath.join(root, named))
    if path == root:
        return "."
    within = root.rstrip("/") + "/"
    return path.removeprefix(within) if path.startswith(within) else None


_WORD = r"[\w./@+-]+"

_FILE = (
    r"[^/]*\.(?:c|cc|cfg|conf|cpp|css|csv|env|ex|go|h|hpp|html|ini|java|js|json|jsx|kt|lock|lua|md|php|proto|py|rb|rs|rst"
    r"|scss|sh|sql|svelte|svg|swift|tf|toml|ts|tsx|txt|vue|xml|ya?ml)|.*/[^/]*\.[A-Za-z]\w{0,7}"
)
"""A word of a plan that is taken for a file even if the plan does not list it."""

_SPAN = r"(?<!`)`([^`\n]+)`(?!`)"

_SIMPLE = r"""(?a)[\w./][\w./,:@%+='" -]*"""
"""A command whose words the plan gate can compare one by one."""


def names_of_steps(plan: str, payload: Mapping[str, JsonValue], root: str) -> dict[int, StepNames]:
    """Return the files and commands that each step of a plan names in its text, by the number of the step.

    A file is one that the `payload` lists, also if the text leaves out its folders, or a word that can only be a file.
    A command is one that the payload lists, or several words in backticks. Commands that the gate cannot compare are
    left out.
    """
    lines, listed = lines_of(plan), _strings(payload.get("files"))
    # A folder is meant by `src/**` as well; all of the workspace is what no step alone names.
    paths = [path.removesuffix("/**") for each in listed if (path := path_of_entry(each, root)) is not None]
    files = [path for path in paths if path not in (".", "**")]
    commands = [each.strip() for each in _strings(payload.get("commands")) if each.strip()]
    found = {}
    for number, within in step_lines(plan).items():
        text = "\n".join(lines[within.start - 1 : within.stop - 1])
        spans = [
            each.strip()
            for each in re.findall(_SPAN, text)
            if " " in each.strip() and re.fullmatch(_SIMPLE, each.strip())
        ]
        named: list[str] = []
        # A command may be the beginning of another one, and may have files in it.
        for command in sorted({*commands, *spans}, key=len, reverse=True):
            text, count = re.subn(rf"(?<![\w./-]){re.escape(command)}(?![\w/-]|\.\w)", " ", text)
            named += [command] if count and _command_words(command) else []
        named_files = set[str]()
        # What is listed is read as a whole: `src/*.py` does not name the folder as well.
        for each in sorted({*files}, key=len, reverse=True):
            text, count = re.subn(rf"(?<![\w./-]){re.escape(each)}(?![\w-]|[./]\w)", " ", text)
            named_files |= {each} if count else set()
        for word in re.findall(_WORD, text):
            path = path_of_entry(word.rstrip("."), root)
            if path is None or path == ".":
                continue
            same = {each for each in files if f"/{each}".endswith(f"/{path}")}
            is_file = word.endswith("/") or re.fullmatch(_FILE, path) is not None
            named_files |= same or ({path} if is_file else set())
        found[number] = StepNames(step=number, files=sorted(named_files), commands=sorted(named))
    return found


def _command_words(command: str) -> list[str]:
    """Return the words of a simple command, or the name of the MCP tool that it is; empty if it may be more."""
    # Imported here, because the first picture loads this module, and needs no types of agents.
    from crewboard.agent_types import MCP_PREFIX

    if command.startswith(MCP_PREFIX):
        return command.split()[:1]
    try:
        return shlex.split(command) if re.fullmatch(_SIMPLE, command) else []
    except ValueError:
        return []


def denied_by_steps(
    plan: str, payload: Mapping[str, JsonValue], root: str, left_out: Collection[int]
) -> list[StepNames]:
    """Return the files and commands that only steps in `left_out` of a plan name, for each step that has any.

    What an approved step names stays allowed, including the folder that such a file is in and the command that begins
    with such a command.
    """
    if not left_out:
        return []
    names = names_of_steps(plan, payload, root)
    approved = [each for number, each in names.items() if number not in left_out]
    files = [file for each in approved for file in each.files]
    commands = [_command_words(command) for each in approved for command in each.commands]
    found = []
    for number in sorted({*left_out} & names.keys()):
        step = StepNames(
            step=number,
            # As rules read it, which refuse it.
            files=[
                each
                for each in names[number].files
                if not any(matches_path(each, file, or_inside=True) for file in files)
            ],
            commands=[
                each
                for each in names[number].commands
                if not any(known[: len(words)] == words for known in commands for words in [_command_words(each)])
            ],
        )
        found += [step] if step.files or step.commands else []
    return found


def shown_files(payload: Mapping[str, JsonValue]) -> list[str]:
    """Return the files that a plan names, as the user is shown them: the root as `everything in the workspace`."""
    return [EVERYTHING if posixpath.normpath(each.strip()) == "." else each for each in _strings(payload.get("files"))]


def run_on_your_machine(payload: Mapping[str, JsonValue]) -> list[str]:
    """Return the files and commands of a plan or a call that the user's own programs may run outside of a sandbox.

    These are files that such programs run or take commands from, and commands that make a git repository.
    """
    given = payload.get("input")
    call = given if isinstance(given, dict) else {}
    files = [*shown_files(payload), str(call.get("path") or "")]
    commands = [*_strings(payload.get("commands")), str(call.get("command") or "")]
    return [*filter(runs_on_your_machine, files), *filter(makes_repository, commands)]


class PlanOverlap(Struct, frozen=True):
    """The files of a plan that the plan of another agent names as well; the other plan is `approved`, or waits."""

    agent: str
    files: tuple[str, ...]
    approved: bool

    def describe(self) -> str:
        """Return a sentence such as `the approved plan of amy names api.py, too`."""
        files = ", ".join(self.files)
        return f"the {'approved' if self.approved else 'waiting'} plan of {self.agent} names {files}, too"


def plan_overlaps(
    request: Request, works: Mapping[str, Work | None], pending: Iterable[Request], root: str
) -> list[PlanOverlap]:
    """Return which plans of other agents name files of this plan, the approved ones first.

    `works` is the work of all agents by name, `pending` are the open requests.
    """
    files = _strings(request.payload.get("files"))
    approved = {name: work.planned for name, work in works.items() if work is not None and work.ended is None}
    waiting = {
        each.from_: _strings(each.payload.get("files"))
        for each in pending
        if each.type == "plan_approval" and each.from_ not in (request.from_, *(n for n, p in approved.items() if p))
    }
    found = []
    for plans, is_approved in ((approved, True), (waiting, False)):
        for name, named in plans.items():
            both = tuple(
                file
                for file in files
                if any(names_file(file, each, root) or names_file(each, file, root) for each in named)
            )
            if name != request.from_ and both:
                found.append(PlanOverlap(name, both, is_approved))
    return found


def _strings(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []
