"""Every environment variable of crewboard: its name, and how its value is read (docs/reference/environment.md).

The environment of the commands that agents run is made in `sandbox/environment.py`.
"""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

ROOT = "CREWBOARD_ROOT"
TEAM = "CREWBOARD_TEAM"
OPERATOR = "CREWBOARD_OPERATOR"
MODEL = "CREWBOARD_MODEL"
OFFLINE = "CREWBOARD_OFFLINE"
OFFLINE_PACE = "CREWBOARD_OFFLINE_PACE"
OFFLINE_FAULTS = "CREWBOARD_OFFLINE_FAULTS"
SANDBOX = "CREWBOARD_SANDBOX"
WARM = "CREWBOARD_WARM"
RETRY_BUDGET = "CREWBOARD_RETRY_BUDGET"
PROGRESS_TIMEOUT = "CREWBOARD_PROGRESS_TIMEOUT"
CALL_TIMEOUT = "CREWBOARD_CALL_TIMEOUT"
DEBUG = "CREWBOARD_DEBUG"
PLATFORM = "CREWBOARD_PLATFORM"
THEME = "CREWBOARD_THEME"
NOTIFY = "CREWBOARD_NOTIFY"
REDUCED_MOTION = "CREWBOARD_REDUCED_MOTION"
ANIMATIONS = "TEXTUAL_ANIMATIONS"
"""A variable of Textual, for all programs that use it; `none` turns animations off."""
SERVE_TOKEN = "CREWBOARD_SERVE_TOKEN"  # noqa: S105  a name
WORKER = "CREWBOARD_WORKER"
HOST = "CREWBOARD_HOST"
AWAY_SINCE = "CREWBOARD_AWAY_SINCE"
COMPLETE = "_CREWBOARD_COMPLETE"

PREFIX = "CREWBOARD_"
API_PREFIX = "ANTHROPIC_"
"""The beginning of the names of variables that the SDK reads; some hold credentials."""

PLATFORMS = {
    "CLAUDE_CODE_USE_BEDROCK": "bedrock",
    "CLAUDE_CODE_USE_VERTEX": "vertex",
    "CLAUDE_CODE_USE_FOUNDRY": "foundry",
}
"""The variables that choose a cloud platform in place of Anthropic's API, as in Claude Code."""

_READ_AGAIN = "ANTHROPIC_IDENTITY_TOKEN"
"""A variable that the SDK reads again whenever it needs a new access token."""

_LONGEST_OPERATOR = 32
"""Most characters of an operator's name that are shown and recorded."""


def root(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the workspace that the user chose with a variable; None if none is set."""
    return environment.get(ROOT) or None


def is_posix(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if crewboard must do without features that only Linux has.

    True on any other system, or if the user sets `CREWBOARD_PLATFORM=posix`.
    """
    return sys.platform != "linux" or environment.get(PLATFORM) == "posix"


def team(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the name of the team that the user chose with a variable; None if none is set."""
    return environment.get(TEAM) or None


def host(environment: Mapping[str, str] = os.environ) -> str:
    """Return the name of the host on which this worker runs; empty on a team without hosts."""
    return environment.get(HOST, "")


def operator(environment: Mapping[str, str]) -> str:
    """Return the operator's name: `$CREWBOARD_OPERATOR`, else `$USER`, else the account's name, else `uid N`.

    Characters that cannot be printed are left out, and the name is cut to 32 characters.
    """
    try:
        account = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        account = ""
    for name in (environment.get(OPERATOR, ""), environment.get("USER", ""), account):
        shown = "".join(filter(str.isprintable, name)).strip()[:_LONGEST_OPERATOR]
        if shown:
            return shown
    return f"uid {os.geteuid()}"


def model(environment: Mapping[str, str]) -> str | None:
    """Return the model that new agents use; None if no variable sets one."""
    return environment.get(MODEL) or environment.get("ANTHROPIC_MODEL") or None


def model_of_line(line: str, environment: Mapping[str, str]) -> str | None:
    """Return the model that stands for a short name such as `haiku` on another server, as in Claude Code.

    None if no variable sets one.
    """
    return environment.get(f"ANTHROPIC_DEFAULT_{line.upper()}_MODEL") or None


def custom_headers(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that the SDK adds to each request, by their names in lower case."""
    lines = environment.get("ANTHROPIC_CUSTOM_HEADERS", "").split("\n")
    found = (line.partition(":") for line in lines if ":" in line)
    return {name.strip().lower(): value.strip() for name, _, value in found}


def is_offline(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if agents use the offline model."""
    return environment.get(OFFLINE) == "1"


def platforms(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the cloud platforms that an environment chooses, by their variables; more than one is a mistake."""
    off = ("", "0", "false")
    return {name: each for name, each in PLATFORMS.items() if environment.get(name, "").lower() not in off}


def platform(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the cloud platform that agents use: bedrock, vertex or foundry; None if they use another server."""
    return None if is_offline(environment) else next(iter(platforms(environment).values()), None)


def forget_api_variables() -> None:
    """Remove the SDK's variables from the environment of this process, except the one that the SDK reads again.

    Call it only after the SDK's client has read them.
    """
    for name in [name for name in os.environ if name.startswith(API_PREFIX) and name != _READ_AGAIN]:
        del os.environ[name]


def offline_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the server of the offline model reads."""
    return {name: value for name, value in environment.items() if name.startswith(OFFLINE)}


def without_api(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that the SDK reads or that choose a cloud platform."""
    return {
        name: value for name, value in environment.items() if not name.startswith(API_PREFIX) and name not in PLATFORMS
    }


def sandbox(environment: Mapping[str, str]) -> str:
    """Return the value of the variable for the sandbox: `auto` by default; it may be invalid."""
    return environment.get(SANDBOX) or "auto"


def may_prefork(environment: Mapping[str, str] = os.environ) -> bool:
    """Return False if the user requires that each worker starts as a new interpreter, else True."""
    return environment.get(WARM) != "0"


def seconds(name: str, default: float) -> float:
    """Return the number of seconds that the variable `name` sets in this process, else `default`.

    Raises:
        ValueError: The value of the variable is not a number.
    """
    return float(os.environ.get(name) or default)


def seconds_problem(environment: Mapping[str, str]) -> str | None:
    """Return what is wrong with a variable that `seconds` reads; None if a worker could use them all."""
    for name in (RETRY_BUDGET, PROGRESS_TIMEOUT, CALL_TIMEOUT):
        if not (text := environment.get(name)):
            continue
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        # Without a budget a call is repeated once, but without time there is no call.
        may_be_0 = name == RETRY_BUDGET
        if not (0 < number < float("inf") or (may_be_0 and number == 0)):
            return f"{name} is {text!r}; it can be a number of seconds, {'0 or more' if may_be_0 else 'more than 0'}"
    return None


def pace_problem(environment: Mapping[str, str]) -> str | None:
    """Return what is wrong with the pace of the offline model; None if its server could use it, or is not used."""
    text = environment.get(OFFLINE_PACE) if is_offline(environment) else None
    try:
        is_number = not text or abs(float(text)) < float("inf")
    except ValueError:
        is_number = False
    return None if is_number else f"{OFFLINE_PACE} is {text!r}; it can be a number, and 0 is at once"


def sandbox_problem(environment: Mapping[str, str]) -> str | None:
    """Return what is wrong with the variable for the sandbox; None if a worker could use it."""
    wanted = sandbox(environment)
    return None if wanted in ("auto", "none") else f"{SANDBOX} is {wanted!r}; it can be auto or none"


def is_debugging() -> bool:
    """Return True if errors are to be printed with their traceback."""
    return os.environ.get(DEBUG) == "1"


def reduced_motion_by(environment: Mapping[str, str]) -> str | None:
    """Return the name of the variable that turns motion on the screen off; None if none does."""
    if own := environment.get(REDUCED_MOTION):
        return REDUCED_MOTION if own != "0" else None
    return ANIMATIONS if environment.get(ANIMATIONS) == "none" else None


def config_home(environment: Mapping[str, str]) -> Path:
    """Return the user's folder of configuration: `$XDG_CONFIG_HOME/crewboard`, else `~/.config/crewboard`."""
    return _user_folder(environment, "XDG_CONFIG_HOME", ".config")


def is_in_browser() -> bool:
    """Return True if textual-serve shows the dashboard's output in a browser."""
    return os.environ.get("TEXTUAL_DRIVER", "").endswith(":WebDriver")


def speaks_utf8() -> bool:
    """Return True if the output may be UTF-8: a browser shows it, or stdout and the terminal's locale use UTF-8."""
    # Only the dashboard asks.
    import locale

    if is_in_browser():
        return True
    # In the locale C Python writes UTF-8 all the same, so stdout's encoding alone does not tell.
    chosen = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "")
    # ssh brings the name of the terminal's locale also where that is not installed, which C then stands in for.
    named = chosen.partition(".")[2].partition("@")[0]
    return _is_utf8(sys.stdout.encoding or "") and (_is_utf8(named) or _is_utf8(locale.getencoding()))


def _is_utf8(encoding: str) -> bool:
    return encoding.lower().replace("-", "") == "utf8"


def state_home(environment: Mapping[str, str]) -> Path:
    """Return the user's folder of saved state: `$XDG_STATE_HOME/crewboard`, else `~/.local/state/crewboard`."""
    return _user_folder(environment, "XDG_STATE_HOME", ".local/state")


def drafts_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the user's drafts, a file for each team."""
    return state_home(environment) / "drafts"


def sent_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the texts that the user sent last from the dashboard, a file for each team."""
    return state_home(environment) / "sent"


def visits_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the files that say how the user left the dashboard of each team."""
    return state_home(environment) / "visits"


def _user_folder(environment: Mapping[str, str], variable: str, default: str) -> Path:
    # `--version` and `--help` load this module, and need no path.
    from pathlib import Path

    # Not platformdirs: it reads the environment of this process, and a team may have a different one.
    # The XDG specification says to ignore a relative path.
    given = Path(environment.get(variable, ""))
    return (given if given.is_absolute() else Path.home() / default) / "crewboard"
