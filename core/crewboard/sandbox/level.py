"""Find out which sandbox works here: bubblewrap, else Landlock with seccomp, else none; check that it is allowed."""

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
"""What each level means for commands, in words for the user."""

REMEDY = (
    "install bubblewrap (`apt install bubblewrap`, `dnf install bubblewrap`); where it is installed, allow user "
    "namespaces for it (Ubuntu: an AppArmor profile for /usr/bin/bwrap with `userns,`; in a container: "
    "`--security-opt unmask=ALL`), or use a kernel with Landlock; docs/reference/sandbox.md says more"
)


@dataclass(frozen=True)
class Found:
    """The level that works here, the reasons why better ones do not, one for each, and what helps."""

    level: Level
    reasons: tuple[str, ...] = ()
    remedy: str = REMEDY


def find(policy: Policy, environment: Mapping[str, str]) -> Found:
    """Return the best level that works for a policy here. Each is tried by running a program in it.

    Raises:
        UsageError: `CREWBOARD_SANDBOX` is neither `auto` nor `none`.
    """
    wanted = env.sandbox(environment)
    if wanted == "none":
        return Found("none", (f"{env.SANDBOX} is none",), f"unset {env.SANDBOX}")
    if (problem := env.sandbox_problem(environment)) is not None:
        raise UsageError(problem)
    if env.is_posix(environment):
        if environment.get(env.PLATFORM) == "posix":
            return Found("none", (f"{env.PLATFORM} is posix",), f"unset {env.PLATFORM}")
        remedy = "run crewboard on Linux or in a container (docs/containers.md)"
        return Found("none", ("bubblewrap and Landlock are parts of Linux",), remedy)
    first = bubblewrap.unavailable_reason(policy)
    if first is None:
        return Found("bubblewrap")
    second = landlock.unavailable_reason(policy)
    return Found("landlock", (first,)) if second is None else Found("none", (first, second))


def check(
    root: Path, kind: AgentType, flags: HireOptions, environment: Mapping[str, str], *, has_engine: bool = False
) -> None:
    """Check that a worker for an agent of this type would find the sandbox that it needs, in this environment.

    Raises:
        NoSandboxError: The worker would not find one, and could not start; the message says what helps.
        UsageError: The environment asks for a level that does not exist.
    """
    if kind.executes or has_engine:
        policy = Policy(Path(os.path.realpath(root)), writes=kind.writes, network=flags.network)
        require_allowed(kind, flags, find(policy, environment), has_engine=has_engine)


def require_allowed(kind: AgentType, flags: HireOptions, found: Found, *, has_engine: bool = False) -> str:
    """Check that an agent of this type may work at the found level; return the text for it in `status.json`.

    With an engine, which does all the work of its agent, the level must be bubblewrap.

    Raises:
        NoSandboxError: The agent executes commands or has an engine, no sandbox for that works, and it was not hired
            with `--unsafe-no-sandbox`.
    """
    if has_engine and found.level != "bubblewrap":
        if flags.unsafe_no_sandbox:
            return SANDBOX_OFF
        remedy = found.remedy.partition(", or use")[0]
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
        f"no sandbox works here ({why}), so an agent of type {kind.name} is not started: {found.remedy}; "
        "or hire it with --unsafe-no-sandbox: its commands then run with your rights"
    )
