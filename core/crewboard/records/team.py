"""The team as a whole: roster and settings, the task board, what the operator has seen, the API cooldown."""

import posixpath
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from crewboard.names import LEAD, OPERATOR, require_recipient
from crewboard.records.agents import Tokens
from crewboard.records.base import Name, Record, Time

TaskStatus = Literal["pending", "in_progress", "completed", "failed", "cancelled"]


class Member(Record):
    """One agent on the roster."""

    name: Name
    type: str
    role: str = ""
    model: str = ""
    added_at: Time = 0
    report_to: Name = LEAD
    plan_required: bool = False
    autoclaim: bool = False
    title: str = ""


def name_of_lead(agents: Iterable[tuple[str, str]]) -> str:
    """Return the name of the lead: the agent called `lead`, else the first of type lead.

    `agents` are pairs of name and type. If no agent is the lead, return the name under which one would be hired.
    """
    leads = [name for name, kind in agents if LEAD in (name, kind)]
    return LEAD if LEAD in leads else next(iter(leads), LEAD)


RuleEffect = Literal["allow", "ask", "deny"]


class Rule(Record, kw_only=True):
    """A permission rule for one agent, for a type of agents, or without both for all agents.

    `pattern` says which commands of bash, or which paths of a file tool, it is for; the tool `files` means every file
    tool that writes. A rule that an approval made has a `scope` instead: for bash a program, for any single command
    that starts it, for a file tool a folder of the workspace. `by` is the user who added it.
    """

    id: str
    effect: RuleEffect = "allow"
    agent: Name | None = None
    agent_type: str | None = None
    tool: str
    scope: str = ""
    pattern: str = ""
    at: Time = 0
    by: str = ""

    def applies_to(self, name: str, agent_type: str) -> bool:
        """Return True if it is a rule for this agent."""
        return self.agent in (None, name) and self.agent_type in (None, agent_type)


def matches_text(pattern: str, text: str) -> bool:
    """Return True if a text is what the pattern of a rule is for; `*` and `?` stand for any characters."""
    return re.fullmatch(_glob(pattern, "."), text, re.DOTALL) is not None


def matches_path(pattern: str, path: str, *, or_inside: bool = False) -> bool:
    """Return True if a path relative to the root matches; `**` stands for any folders, at the end for all inside.

    With `or_inside` also if it is in a folder that matches.
    """
    if or_inside:
        pattern = pattern.rstrip("/")
        return matches_path(pattern, path) or matches_path(f"{pattern}/**", path)
    *folders, last = posixpath.normpath(pattern).split("/")
    steps = ["(?:[^/]+/)*" if each == "**" else _glob(each, "[^/]") + "/" for each in folders]
    steps.append(".+" if last == "**" else _glob(last, "[^/]"))
    return re.fullmatch("".join(steps), path, re.DOTALL) is not None


def _glob(pattern: str, character: str) -> str:
    """Return a pattern with `*` and `?`, which stand for this `character`, as a regular expression."""
    return "".join({"*": f"{character}*", "?": character}.get(each) or re.escape(each) for each in pattern)


class Removed(Record):
    """The remains of the removed agents of one name: the number of their newest run, and all that they used."""

    run: int = 0
    tokens: Tokens = field(default_factory=Tokens)
    cost_usd: float | None = None

    def __add__(self, other: "Removed") -> "Removed":
        known = [cost for cost in (self.cost_usd, other.cost_usd) if cost is not None]
        return Removed(
            run=max(self.run, other.run), tokens=self.tokens + other.tokens, cost_usd=sum(known) if known else None
        )


class AttachedTeam(Record):
    """The team of another program that a team directory mirrors.

    `team` is the name that the program gives it, `config_dir` the program's directory of configuration, `cwd` where
    the lead works, and `session_ids` are the sessions of the team, the newest last. `version` is the program's, and
    `tested` is False if crewboard was not tested with it. `hooks` says that its plans wait for the operator.
    Only with `letters` are letters of the user written into the program's files.
    """

    program: Literal["claude-code"]
    team: str
    config_dir: str
    cwd: str = ""
    session_ids: list[str] = []
    version: str = ""
    tested: bool = True
    hooks: bool = False
    letters: bool = False


class Config(Record, kw_only=True):
    """`config.json`: who is on the team, and its settings.

    `on_outage` says what agents do while the API is unavailable, `outage_hours` for how long they wait at most. With
    `result_needs`, a result that the operator has not read is a need. An approved plan holds for `approval_hours`.
    `collisions` says what happens before file tools of two agents change the same file: nothing (`warn`), the operator
    is asked (`hold`), or the files of an approved plan are refused to others until the result (`claims`).
    With `lead_merges`, a lead may merge the work of agents with worktrees into a branch that is not checked out.
    If `worktree` is `always`, agents that write files get checkouts of their own.
    `check` is the command that must pass before a task without a check of its own is completed.
    `attached` names the team of another program that this one mirrors: its agents are neither started nor ended here.
    `offline` is True for a team made by an import whose agents had used the offline model: it stays on it.
    The files and folders `worktree_copy` of the root, which are not in the repository, are copied into each checkout,
    and then the command `worktree_setup` runs in it, in the sandbox of its agent.
    `model` is the model of new agents, with exceptions for types: `qwen3-coder explore=qwen3:8b`.
    `server` is the address of a server of models on this machine or its network, which is used without a key.
    `engine` does the work of agents that the operator hires, in place of the model, where their type takes one.
    """

    schema_: Literal[1] = field(default=1, name="schema")
    name: Name
    description: str = ""
    created_at: Time = 0
    rev: int = 0
    plan_approver: Literal["operator", "lead"] = "operator"
    members: list[Member] = []
    rules: list[Rule] = []
    budget: str | None = None
    max_agents: Annotated[int, Meta(ge=1)] | None = None
    max_working: Annotated[int, Meta(ge=1)] | None = None
    min_free_memory: Annotated[int, Meta(ge=1)] | None = None
    on_outage: Literal["wait", "fail"] = "wait"
    outage_hours: Annotated[float, Meta(gt=0)] = 12
    result_needs: bool = True
    approval_hours: Annotated[float, Meta(gt=0)] | None = None
    worktree: Literal["always", "never"] = "never"
    check: str | None = None
    lead_merges: bool = False
    collisions: Literal["warn", "hold", "claims"] = "warn"
    worktree_copy: list[str] | None = None
    worktree_setup: str | None = None
    model: str | None = None
    server: str | None = None
    engine: str | None = None
    attached: AttachedTeam | None = None
    offline: bool = False
    removed: dict[Name, Removed] = {}

    @property
    def names(self) -> list[str]:
        """Return the names of the agents, in the order of the roster."""
        return [member.name for member in self.members]

    @property
    def lead(self) -> str:
        """Return the name of the lead; `lead` while there is none."""
        return name_of_lead([(member.name, member.type) for member in self.members])

    def reports_to(self, name: str) -> str:
        """Return the agent or the operator that the agent `name` reports to."""
        member = self.member(name)
        to = member.report_to if member is not None else LEAD
        if to != LEAD:
            return to
        return OPERATOR if name == self.lead else self.lead

    def recipient(self, name: str) -> str:
        """Return the mailbox for mail to `name`; mail to `lead` goes to the agent that is the lead, whatever its name.

        Raises:
            UsageError: No agent is called that; the message lists the names.
        """
        return self.lead if name == LEAD else require_recipient(name, self.names)

    @property
    def removed_total(self) -> Removed:
        """Return the total usage of all removed agents."""
        return sum(self.removed.values(), start=Removed())

    def member(self, name: str) -> Member | None:
        """Return the member called `name`, or None."""
        return next((member for member in self.members if member.name == name), None)


class Checked(Record):
    """One run of a check: when it ended, its command, its exit code, and the file with its whole output.

    `exit_code` is null if the command did not run to its end. `tree` is the tree of the agent's own checkout that it
    ran on; empty in the shared tree.
    """

    at: Time
    command: str
    exit_code: int | None = None
    result: str = ""
    tree: str = ""

    @property
    def passed(self) -> bool:
        """Return True if the command ended with exit code 0."""
        return self.exit_code == 0


class Shown(Record):
    """The work that a reviewer is shown: the git trees with which its diff begins and ends."""

    since: str
    tree: str


class Reviewed(Record):
    """An approval of the work of the agent `of`: who gave it, when, and the git trees that the reviewer was shown.

    The trees are empty if the work was done in the shared tree, or was thrown away since.
    """

    of: Name
    by: Name
    at: Time
    since: str = ""
    tree: str = ""


class Task(Record):
    """`tasks/<id>.json`: one task of the task board.

    The higher its `priority`, the earlier it is claimed; 0 is normal. `updated_at` and `rev` are about its status, its
    owner and what blocks it, `edited_at` about its subject, description, priority and check: an edit is no new failure.

    `check` is the command that must pass before the task is completed, and `check_by` who set it: null means the team's
    check, an empty text none. `checked` is the last run of the check, `check_failures` how often it failed in a row
    when its owner reported the task as completed.

    `review` is the agent, or the operator, that must approve the work before the task is completed. While it is asked,
    `in_review` is the id of the request, and the task is in progress. `reviews` counts how often it was asked.
    `reviewed` is the last approval. `shown` is what the reviewer of an agent with a worktree was shown last.
    """

    id: Annotated[int, Meta(ge=1)]
    subject: str
    description: str = ""
    priority: int = 0
    status: TaskStatus = "pending"
    owner: Name | None = None
    last_owner: Name | None = None
    blocked_by: list[int] = []
    required_type: str | None = None
    created_at: Time = 0
    updated_at: Time = 0
    edited_at: Time = 0
    rev: int = 0
    check: str | None = None
    check_by: Name = OPERATOR
    checked: Checked | None = None
    check_failures: Annotated[int, Meta(ge=0)] = 0
    review: Name | None = None
    in_review: str | None = None
    reviews: Annotated[int, Meta(ge=0)] = 0
    shown: Shown | None = None
    reviewed: Reviewed | None = None


class Cooldown(Record):
    """`cooldown.json`: the time until which no agent of the team calls a server, because the server asked for that.

    `until_monotonic` is the same time on the monotonic clock of the boot `boot_id`, because the wall clock may be
    changed.
    `since` is when an outage of the API began, 0 if there is none; `failures` counts the attempts that failed in it,
    and `tried` is when an agent tried last before its pause was over. `address` is the host and port of the server, and
    `others` are the pauses of other servers. One without an address, of an older version, is for all servers.
    `refuses` are fields that the server refused, each with the time of that: requests are sent without them.
    `too_large` are the bytes of a request that the server did not take because of them, 0 if none is known, and
    `too_large_at` is when it was learned or forgotten.
    """

    until: Time = 0
    until_monotonic: float | None = None
    boot_id: str = ""
    by: Name = OPERATOR
    error: str = ""
    since: Time = 0
    failures: int = 0
    tried: Time = 0
    address: str = ""
    others: list["Cooldown"] = []
    refuses: dict[str, Time] = {}
    too_large: int = 0
    too_large_at: Time = 0


class Act(Record):
    """One line of `audit.jsonl`: what an operator did to `target`, or to the team if `target` is empty.

    `detail` says more in a few words, such as the type of a hired agent or the id of a request. It holds no text that
    was written to an agent.
    """

    ts: Time
    who: str
    act: str
    target: str = ""
    detail: str = ""


How = Literal["squash", "merge", "rebase"]
"""The way in which the work of an agent comes into a branch."""


class Acceptance(Record):
    """A merge of the snapshot `commit` of an agent into the branch `ref`, which went from `before` to `result`.

    `base` is the commit that the work was compared with. `undone` is the commit at which the branch was after the
    merge was taken back. If it is `discarded`, the worktree is gone, and work of a later one is not compared with it.
    """

    id: str
    agent: Name
    commit: str
    base: str
    how: How
    ref: str
    before: str
    result: str
    at: Time = 0
    by: str = ""
    undone: str | None = None
    discarded: bool = False


class Move(Record):
    """A branch `ref` that is being moved from `old` to `new`, with the working tree and the index if `files` is set.

    The names of the files that it needs in the git directory contain `id`. `acceptance` is recorded when it is done.
    """

    id: str
    ref: str
    old: str
    new: str
    files: bool
    acceptance: Acceptance


class Acceptances(Record):
    """`acceptances.json`: what was merged, oldest first, and the move that is under way or was interrupted."""

    acceptances: list[Acceptance] = []
    move: Move | None = None


CommitId = Annotated[str, Meta(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})\Z")]


class Bundle(Record):
    """A git bundle in the store, which brings `commits`: the records `bundles/ID.0.part` and so on, `size` bytes."""

    id: str
    commits: list[CommitId]
    parts: Annotated[int, Meta(ge=1)]
    size: int


class Workspace(Record):
    """`workspace.json`: what the agents of a team with hosts begin with, pushed `by` a user.

    `commit` is `head`, which was checked out, with the uncommitted files. `bundles` bring it, and the earlier ones, one
    after the other; with a `url`, all up to `head` is fetched from there. `folder` is the team's root relative to the
    top of the repository. `hash_name` is `sha1` or `sha256`.
    """

    commit: CommitId
    head: CommitId
    branch: str = ""
    folder: str = ""
    hash_name: str = "sha1"
    url: str = ""
    bundles: list[Bundle] = []
    by: str = ""
    at: Time = 0


class Carried(Record):
    """`workspaces/AGENT.json`: the newest snapshot of an agent on a host, and the bundles that bring it to others.

    The bundles build on `base`, where its worktree began. `setup` is the snapshot that its work is compared with, if
    that is another one: after the setup of its checkout, or that of the agent that it starts from. `missing` describes
    what the snapshot could not take in.
    """

    commit: CommitId
    base: CommitId
    setup: str = ""
    run: int = 0
    at: Time = 0
    bundles: list[Bundle] = []
    missing: list[str] = []


class Unmerged(Record):
    """The files that an agent with a worktree changed, as of its snapshot `commit`, and that are not merged.

    `state` identifies what they follow from; while it stays the same, so do they. `more` says that not all are listed.
    `added` and `removed` count the lines of all text files.
    """

    commit: str
    state: str
    files: list[str] = []
    more: bool = False
    added: int = 0
    removed: int = 0


class ComparedPair(Record):
    """A merge of the snapshots `commits` of two agents that changed a file of the same name.

    `files` are those in which they conflict, none if they merge; since `since`, one of these was not there before.
    """

    agents: tuple[Name, Name]
    commits: tuple[str, str]
    files: list[str] = []
    since: Time = 0


class Collisions(Record):
    """`collisions.json`: the unmerged work of agents with worktrees, and whether it merges with each other's."""

    unmerged: dict[Name, Unmerged] = {}
    pairs: list[ComparedPair] = []


class Presence(Record):
    """The contents of a lease in `presence/`: who has the dashboard open, and which request is on the screen."""

    id: str
    who: str
    since: Time = 0
    looking_at: str | None = None


class ToldNeed(Record):
    """A need that was sent to the user's hook at `at`, in the form that was sent, and whether a reminder was sent."""

    need: dict[str, Any]
    at: Time = 0
    reminded: bool = False


class ToldNeeds(Record):
    """`told.json`: the open needs that were sent to the user's hook, by key."""

    needs: dict[str, ToldNeed] = {}
    ran_at: Time = 0


class OperatorState(Record):
    """`operator.json`: how far the operator has read (bytes, by mailbox) and what it acknowledged.

    `acknowledged` contains the ended run by agent, `failures` the time at which the failed assignment of a running
    agent ended. `needs` contains the version up to which any other need was acknowledged, by its mark (`result_mark`
    etc.).
    """

    read: dict[str, int] = {}
    acknowledged: dict[str, int] = {}
    failures: dict[str, Time] = {}
    needs: dict[str, float] = {}
    rev: int = 0


OUTAGE_MARK = "outage"
"""The key in `OperatorState.needs` of an outage; its version is a time up to which it was acknowledged."""


def task_mark(task_id: int) -> str:
    """Return the key in `OperatorState.needs` of a failed task; its version is the task's `rev`."""
    return f"task:{task_id}"


def check_mark(task_id: int) -> str:
    """Return the key in `OperatorState.needs` of a check that fails; its version is the time of its last run."""
    return f"check:{task_id}"


def result_mark(mailbox: str, author: str) -> str:
    """Return the key in `OperatorState.needs` of an agent's results; its version is an offset in the mailbox."""
    return f"result:{mailbox}:{author}"


def collision_mark(one: str, other: str) -> str:
    """Return the key in `OperatorState.needs` of two agents that collide; its version is the time of the last file."""
    return f"collision:{':'.join(sorted((one, other)))}"


def mcp_mark(agent: str, server: str) -> str:
    """Return the key in `OperatorState.needs` of an MCP server that an agent lacks; its version is since when."""
    return f"mcp:{agent}:{server}"


def damage_mark(place: str) -> str:
    """Return the key in `OperatorState.needs` of a damaged file; its version is the time of the change, or a count."""
    return f"damaged:{place}"
