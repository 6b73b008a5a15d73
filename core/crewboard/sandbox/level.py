"""The sandbox that works here: bubblewrap, else Landlock with seccomp, else none, which needs `--unsafe-no-sandbox`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from crewboard import env
from crewboard.agent_types import AgentType
from crewboard.errors import NoSandboxError, UsageError
from crewboard.records.agents import SANDBOX_OFF, HireOptions
from crewboard.sandbox import bubblewrap, landlock
from crewboard.sandbox.policy import Policy

Level = Literal["bubblewrap", "landlock", "none"]

UNSAFE_WARNING = "no sandbox works here; its commands run with your rights (--unsafe-no-sandbox)"

MEANING: dict[Level, str] = {
    "bubblewrap": "commands see the workspace, no secrets, no network, no process but their own",
    "landlock": "commands read and write what their type may, no secrets, no network; "
    "they see names of processes and files, cannot commit, nor make new entries in the root itself",
    "none": "commands run unconfined, with your rights; only path checks confine the file tools",
}
"""The meaning of each level, in words."""

REMEDY = (
    "install bubblewrap (`apt install bubblewrap`, `dnf install bubblewrap`); where it is installed, allow user "
    "namespaces for it (Ubuntu: an AppArmor profile for /usr/bin/bwrap with `userns,`; in a container: "
    "`--security-opt unmask=ALL`), or use a kernel with Landlock; docs/reference/sandbox.md says more"
)


@dataclass(frozen=True)
class Found:
    """The level that works here, and why better ones do not."""

    level: Level
    reasons: tuple[str, ...] = ()


def find(policy: Policy, environment: Mapping[str, str]) -> Found:
    """Return the best level that works for a policy here; try each once.

    Raises:
        UsageError: `CREWBOARD_SANDBOX` is neither `auto` nor `none`.
    """
    wanted = env.sandbox(environment)
    if wanted == "none":
        return Found("none", (f"{env.SANDBOX} is none",))
    if wanted != "auto":
        raise UsageError(f"{env.SANDBOX} is {wanted!r}; it can be auto or none")
    if env.is_posix(environment):
        return Found("none", ("bubblewrap and Landlock are parts of Linux",))
    first = bubblewrap.unavailable_reason(policy)
    if first is None:
        return Found("bubblewrap")
    second = landlock.unavailable_reason(policy)
    return Found("landlock", (first,)) if second is None else Found("none", (first, second))


def check(
    root: Path, kind: AgentType, flags: HireOptions, environment: Mapping[str, str], *, has_engine: bool = False
) -> None:
    """Check that a worker of this type, with this environment, would be allowed to start.

    Raises:
        NoSandboxError: It would not; the message says what helps.
        UsageError: The environment asks for a level that does not exist.
    """
    if kind.executes or has_engine:
        policy = Policy(Path(os.path.realpath(root)), writes=kind.writes, network=flags.network)
        require_allowed(kind, flags, find(policy, environment), has_engine=has_engine)


def require_allowed(kind: AgentType, flags: HireOptions, found: Found, *, has_engine: bool = False) -> str:
    """Return how `status.json` names the sandbox of an agent of this type at that level.

    An engine is one program that does all the work of its agent, so its sandbox is bubblewrap, or none.

    Raises:
        NoSandboxError: It executes commands, no sandbox works, and it was not hired for that.
    """
    if has_engine and found.level != "bubblewrap":
        if flags.unsafe_no_sandbox:
            return SANDBOX_OFF
        remedy = REMEDY.partition(", or use")[0]
        raise NoSandboxError(
            f"bubblewrap does not work here ({found.reasons[0]}), so no engine is started: {remedy}; "
            "or hire it with --unsafe-no-sandbox: it then runs with your rights"
        )
    if found.level != "none" or not kind.executes:
        return found.level
    if flags.unsafe_no_sandbox:
        return SANDBOX_OFF
    why = "; ".join(found.reasons)
    raise NoSandboxError(
        f"no sandbox works here ({why}), so an agent of type {kind.name} is not started: {REMEDY}; "
        "or hire it with --unsafe-no-sandbox: its commands then run with your rights"
    )
