"""Records of the team as a whole: roster, settings and rules, tasks, API cooldown, merges, and the operator's state."""

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
    """One agent on the roster.

    `report_to` is who gets its results. `title` is the user's text beside its name.
    """

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
    """Return the name of the lead: the agent called `lead`, else the first of type `lead`.

    `agents` are pairs of name and type. If there is no lead, return `lead`.
    """
    leads = [name for name, kind in agents if LEAD in (name, kind)]
    return LEAD if LEAD in leads else next(iter(leads), LEAD)


RuleEffect = Literal["allow", "ask", "deny"]


class Rule(Record, kw_only=True):
    """A permission rule for the agent `agent`, for agents of the type `agent_type`, or for all agents if both are None.

    `pattern` says for which commands of bash, or for which paths of a file tool, the rule is; the tool `files` stands
    for all tools that write files. A rule that was made with an approval has a `scope` instead: for bash, a program, in
    any single command that starts it; for a file tool, a folder of the workspace. `by` is the user who added it.
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
        """Return True if the rule is for this agent, or for agents of this type."""
        return self.agent in (None, name) and self.agent_type in (None, agent_type)


def matches_text(pattern: str, text: str) -> bool:
    """Return True if a text matches the pattern of a rule, in which `*` and `?` stand for any characters."""
    return re.fullmatch(_glob(pattern, "."), text, re.DOTALL) is not None


def matches_path(pattern: str, path: str, *, or_inside: bool = False) -> bool:
    """Return True if a path relative to the root matches a pattern, in which `**` stands for any folders.

    At the end of a pattern, `**` stands for everything inside of the folder. With `or_inside`, also return True if the
    path is inside of a folder that matches.
    """
    if or_inside:
        pattern = pattern.rstrip("/")
        return matches_path(pattern, path) or matches_path(f"{pattern}/**", path)
    *folders, last = posixpath.normpath(pattern).split("/")
    steps = ["(?:[^/]+/)*" if each == "**" else _glob(each, "[^/]") + "/" for each in folders]
    steps.append(".+" if last == "**" else _glob(last, "[^/]"))
    return re.fullmatch("".join(steps), path, re.DOTALL) is not None


def _glob(pattern: str, character: str) -> str:
    """Return a regular expression for a pattern in which `*` and `?` stand for any of the given `character`."""
    return "".join({"*": f"{character}*", "?": character}.get(each) or re.escape(each) for each in pattern)


class Removed(Record):
    """What remains of removed agents of one name: the number of their newest run, and all that they used."""

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

    `team` is the name that the program gives it, `config_dir` the program's folder of configuration, `cwd` the folder
    in which the lead works, and `session_ids` are the sessions of the team, the newest last. `version` is that of the
    program, and `tested` is False if crewboard was not tested with it. `hooks` says that plans in the program wait for
    the operator. Only with `letters` are messages of the user written into the program's files.
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

    - `on_outage` says what agents do while the API is unavailable, `outage_hours` for how long they wait at most.
    - With `result_needs`, a result that the operator has not read is a need.
    - An approved plan holds for `approval_hours`.
    - `collisions` says what happens before file tools of two agents change the same file: nothing (`warn`), the
      operator is asked (`hold`), or the files of an approved plan are refused to others until the result (`claims`).
    - With `lead_merges`, a lead may merge the work of agents with worktrees into a branch that is not checked out.
    - If `worktree` is `always`, agents that write files get checkouts of their own. `worktree_copy` are files and
      folders of the root, which are not in the repository, that are copied into each checkout. Then the command
      `worktree_setup` runs in it, in the sandbox of its agent.
    - `check` is the command that must pass before a task without a check of its own is completed.
    - `model` is the model of new agents, with exceptions for types: `qwen3-coder explore=qwen3:8b`.
    - `server` is the address of a server of models on this machine or its network, which is used without a key.
    - `engine` is the engine of agents that the operator hires, where their type takes one.
    - `attached` is the team of another program that this one mirrors: its agents are neither started nor ended here.
    - `offline` is True for an imported team whose agents had used the offline model: they keep using it.
    - `removed` has what remains of removed agents, by name. `rev` counts the changes of the record.
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
        """Return the name of the lead; `lead` if there is none."""
        return name_of_lead([(member.name, member.type) for member in self.members])

    def reports_to(self, name: str) -> str:
        """Return the name of the agent or of the operator that gets the results of the agent `name`."""
        member = self.member(name)
        to = member.report_to if member is not None else LEAD
        if to != LEAD:
            return to
        return OPERATOR if name == self.lead else self.lead

    def recipient(self, name: str) -> str:
        """Return the name of the mailbox for mail to `name`: that of the lead, under any name, for mail to `lead`.

        Raises:
            UsageError: There is no such recipient; the message lists the names.
        """
        return self.lead if name == LEAD else require_recipient(name, self.names)

    @property
    def removed_total(self) -> Removed:
        """Return all that removed agents used, together."""
        return sum(self.removed.values(), start=Removed())

    def member(self, name: str) -> Member | None:
        """Return the member called `name`; None if there is none."""
        return next((member for member in self.members if member.name == name), None)


class Checked(Record):
    """One run of a check: when it ended, its command, its exit code, and the file with its whole output (`result`).

    `exit_code` is None if the command did not run to its end. `tree` is the git tree of the agent's own checkout in
    which it ran; empty in the shared tree.
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
    """The work that a reviewer was shown: the git trees at the beginning and end of its diff."""

    since: str
    tree: str


class Reviewed(Record):
    """An approval of the work of the agent `of`: who gave it, when, and the git trees that the reviewer was shown.

    The trees are empty if the work was done in the shared tree, or has been discarded since.
    """

    of: Name
    by: Name
    at: Time
    since: str = ""
    tree: str = ""


class Task(Record):
    """`tasks/<id>.json`: one task of the task board.

    - The higher its `priority`, the earlier it is claimed; 0 is normal.
    - `last_owner` is the owner before it was released. `required_type` is the agent type that its owner must have.
    - `updated_at` and `rev` are about its status, its owner and what blocks it; `edited_at` is about its subject,
      description, priority and check, because an edit is no new failure.
    - `check` is the command that must pass before the task is completed, and `check_by` is who set it. None means the
      team's check, an empty text none. `checked` is the last run of the check, and `check_failures` is how often in a
      row it failed when the owner reported the task as completed.
    - `review` is the agent, or the operator, that must approve the work before the task is completed. While it is
      asked, `in_review` is the id of the request, and the task is in progress. `reviews` counts how often it was asked,
      and `reviewed` is the last approval. `shown` is what the reviewer of an agent with a worktree was shown last.
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
    """`cooldown.json`: until when no agent of the team calls a server, because the server asked for a pause.

    - `until_monotonic` is `until` on the monotonic clock of the boot `boot_id`, because the wall clock may be changed.
    - `since` is when an outage of the API began, 0 if there is none; `failures` counts the attempts that failed in it,
      and `tried` is when an agent last tried before its pause was over.
    - `address` is the host and port of the server, and `others` are the pauses of other servers. A pause without an
      address, from an older version, is for all servers.
    - `refuses` are fields that the server refused, with the time of each: requests are sent without them.
    - `too_large` is the size in bytes of a request that was too large for the server, 0 if none is known, and
      `too_large_at` is when that was learned or forgotten.
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

    `detail` says more in a few words, such as the type of a hired agent or the id of a request. It contains no text
    that was written to an agent.
    """

    ts: Time
    who: str
    act: str
    target: str = ""
    detail: str = ""


How = Literal["squash", "merge", "rebase"]
"""How the work of an agent is merged into a branch."""


class Acceptance(Record):
    """A merge of the snapshot `commit` of an agent into the branch `ref`, which moved from `before` to `result`.

    `base` is the commit that the work was compared with. `undone` is the commit of the branch after the merge was
    undone; None if it was not. With `discarded`, the worktree of the work is gone, and work in a later worktree is not
    compared with this merge.
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

    The names of its temporary files in the git directory contain `id`. `acceptance` is recorded when the move is done.
    """

    id: str
    ref: str
    old: str
    new: str
    files: bool
    acceptance: Acceptance


class Acceptances(Record):
    """`acceptances.json`: all merges, oldest first, and the move that is under way or was interrupted, if any."""

    acceptances: list[Acceptance] = []
    move: Move | None = None


CommitId = Annotated[str, Meta(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})\Z")]


class Bundle(Record):
    """A git bundle in the store that contains `commits`: `size` bytes in the records `bundles/ID.0.part` and so on."""

    id: str
    commits: list[CommitId]
    parts: Annotated[int, Meta(ge=1)]
    size: int


class Workspace(Record):
    """`workspace.json`: the state of the user's repository with which agents of a team with hosts begin.

    `by` is the user who pushed it. `commit` is the commit `head`, which was checked out, with the uncommitted files.
    Its `bundles` are applied in order; with a `url`, all up to `head` is fetched from there. `folder` is the team's
    root relative to the top of the repository. `hash_name` is `sha1` or `sha256`.
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
    """`workspaces/AGENT.json`: the newest snapshot of an agent on a host, and the bundles that bring it elsewhere.

    The bundles build on `base`, at which its worktree began. `setup` is the snapshot that its work is compared with, if
    that is another one than `base`: the one after the setup of its checkout, or that of the agent from which it
    started. `missing` describes what the snapshot could not take in.
    """

    commit: CommitId
    base: CommitId
    setup: str = ""
    run: int = 0
    at: Time = 0
    bundles: list[Bundle] = []
    missing: list[str] = []


class Unmerged(Record):
    """The files that an agent with a worktree changed, up to its snapshot `commit`, and that are not merged.

    `state` identifies what the list was computed from: while it is the same, the list is valid. `more` says that not
    all files are listed. `added` and `removed` count the lines of all text files.
    """

    commit: str
    state: str
    files: list[str] = []
    more: bool = False
    added: int = 0
    removed: int = 0


class ComparedPair(Record):
    """The result of a trial merge of the snapshots `commits` of two agents that changed a file of the same name.

    `files` are those in which they conflict, empty if they merge. `since` is when one of these files was added.
    """

    agents: tuple[Name, Name]
    commits: tuple[str, str]
    files: list[str] = []
    since: Time = 0


class Collisions(Record):
    """`collisions.json`: the unmerged work of agents with worktrees, and which of it conflicts."""

    unmerged: dict[Name, Unmerged] = {}
    pairs: list[ComparedPair] = []


class Presence(Record):
    """The contents of a lease in `presence/`: who has a dashboard open, and the id of the request on its screen."""

    id: str
    who: str
    since: Time = 0
    looking_at: str | None = None


class ToldNeed(Record):
    """A need as it was sent to the user's hook, at which time, and whether a reminder was sent."""

    need: dict[str, Any]
    at: Time = 0
    reminded: bool = False


class ToldNeeds(Record):
    """`told.json`: the open needs that were sent to the user's hook, by key. `ran_at` is when the hook last ran."""

    needs: dict[str, ToldNeed] = {}
    ran_at: Time = 0


class OperatorState(Record):
    """`operator.json`: how many bytes of each mailbox the operator has read, and what the operator acknowledged.

    `acknowledged` has the number of the ended run that was acknowledged, by agent, and `failures` when the acknowledged
    failure of a running agent's assignment was. `needs` has other acknowledged needs by their marks (`result_mark` and
    others), each with the version up to which it was acknowledged.
    """

    read: dict[str, int] = {}
    acknowledged: dict[str, int] = {}
    failures: dict[str, Time] = {}
    needs: dict[str, float] = {}
    rev: int = 0


OUTAGE_MARK = "outage"
"""The key of an outage in `OperatorState.needs`; its version is the time up to which it was acknowledged."""


def task_mark(task_id: int) -> str:
    """Return the key of a failed task in `OperatorState.needs`; its version is the task's `rev`."""
    return f"task:{task_id}"


def check_mark(task_id: int) -> str:
    """Return the key of a task's failing check in `OperatorState.needs`; its version is when the check last ended."""
    return f"check:{task_id}"


def result_mark(mailbox: str, author: str) -> str:
    """Return the key of an agent's results in `OperatorState.needs`; its version is a byte offset in the mailbox."""
    return f"result:{mailbox}:{author}"


def collision_mark(one: str, other: str) -> str:
    """Return the key of two agents that collide in `OperatorState.needs`; its version is the time of the last file."""
    return f"collision:{':'.join(sorted((one, other)))}"


def mcp_mark(agent: str, server: str) -> str:
    """Return the key of an MCP server that an agent lacks in `OperatorState.needs`.

    Its version is the time since when the agent lacks the server.
    """
    return f"mcp:{agent}:{server}"


def damage_mark(place: str) -> str:
    """Return the key of damage at a place of the team in `OperatorState.needs`; its version is `Damage.version`."""
    return f"damaged:{place}"
