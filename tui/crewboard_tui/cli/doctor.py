"""The commands `doctor`, with its checks, and `info`."""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click

import crewboard as core
from crewboard import (
    BadDataError,
    CredentialsError,
    StorageError,
    Team,
    UsageError,
    agent_types,
    endpoint,
    env,
    mcp_servers,
    models,
    pricing,
    redaction,
    skill_files,
    type_files,
)
from crewboard import engines as crewboard_engines
from crewboard import local_servers as crewboard_local_servers
from crewboard.attach import formats
from crewboard.commands import hire
from crewboard.commands.context import FINDS_MODELS, check_credentials, command_for, how_to_follow, root_options
from crewboard.errors import how_to_install
from crewboard.readmodel import watcher as readmodel_watcher
from crewboard.readmodel.needs import ways_to_begin
from crewboard.records.agents import Tokens
from crewboard.records.base import convert, counted
from crewboard.sandbox import git as sandbox_git
from crewboard.sandbox import level, policy
from crewboard.store import hosts, roster
from crewboard.store.files import disk_state
from crewboard.store.interface import SCHEMA_VERSION
from crewboard.store.layout import HOME, TeamDirectory, team_directories
from crewboard.unix import process
from crewboard_tui.cli import common
from crewboard_tui.cli.common import Session, as_json, say, say_json
from crewboard_tui.render.sanitize import safe_line

Mark = Literal["ok", "note", "bad"]

HINT_WITHIN = 2.0
"""Seconds to wait for a file event."""

_CLOCK_MAY_DIFFER = 2.0
"""Seconds by which the clock of this machine may differ from that of the store."""

_LOOK_TIMEOUT = 1.0
"""Seconds that a server on this machine or its network may take to answer."""

_TRY_TIMEOUT = 5.0
"""Seconds that a server may take to say which models it has, before an agent's call is tried."""

_SLOW = 0.25
"""The share of the time limit for progress above which a small call counts as slow."""

_MORE_TIME = f"`export {env.PROGRESS_TIMEOUT}=600` gives a slow server more time"

_NAMED = 5
"""The most models that are named: a gateway may have hundreds."""

_UNAUTHORIZED = (401, 403)
_OK = 200

_SERVER_FAILED = 500

_SMALLEST = (60, 12)


@dataclass(frozen=True)
class Check:
    """The result of one check, with a remedy if something is wrong."""

    name: str
    mark: Mark
    detail: str
    remedy: str | None = None


def all_checks(session: Session, to_try: Sequence[str] = ()) -> list[Check]:
    """Run all checks, the most important first, and return their results. Make one call to each model in `to_try`."""
    environment = session.team.worker_environment
    offline = env.is_offline(environment)
    wrong, wrong_pace = env.seconds_problem(environment), env.pace_problem(environment)
    return [
        python(),
        bytecode(package_folders()),
        *(
            [model(session.team, offline=offline, has_hosts=has_hosts(session.team.directory))]
            if not to_try or offline or wrong
            else tried(session.team, dict(environment), to_try)
        ),
        *([Check("seconds", "bad", wrong, "unset it, or correct it")] if wrong else []),
        *([Check("pace", "bad", wrong_pace, "unset it, or correct it")] if wrong_pace else []),
        *local_servers(session, environment),
        *system(),
        sandbox(session.root, environment),
        *root_user(),
        memory(),
        watcher(),
        files(session.team.directory),
        *database(session.team.directory),
        terminal(),
        *settings_files(session.root, os.environ),
        *keymap(),
        *hook(),
        git(session.root),
        *plans(session.root),
        *mcp(session.root, environment),
        *skills(session.root, environment),
        *engines(session.root),
        *tables(session.root),
    ]


def local_servers(session: Session, environment: Mapping[str, str]) -> list[Check]:
    """Return a note for each server of models on this machine that the team could use.

    The result is empty if the team needs none: it is offline, or has a key, an address or hosts.
    """
    if env.is_offline(environment) or endpoint.credential(environment) is not None:
        return []
    if environment.get(endpoint.BASE_URL) or has_hosts(session.team.directory):
        return []
    commands = partial(command_for, session.team)
    return [
        Check(
            "local", "note", f"{found} ({found.url})",
            f"`{commands(f'settings server {found.url}')} && {commands(f'settings model {shlex.quote(found.best)}')}` "
            "lets this team use it; then `crewboard doctor --try`",
        )
        for found in crewboard_local_servers.find()
    ]  # fmt: skip


def python() -> Check:
    """Check the interpreter and the SDK."""
    version = platform.python_version()
    try:
        sdk = importlib.metadata.version("anthropic")
    except importlib.metadata.PackageNotFoundError:
        return Check("python", "bad", f"{version}, without the anthropic SDK", "install crewboard again")
    return Check("python", "ok", f"{version}, anthropic {sdk}")


def package_folders() -> list[Path]:
    """Return the folders of the packages that take most of a start's time to load: the SDK and crewboard itself."""
    found = (importlib.util.find_spec(name) for name in ("anthropic", "crewboard", "crewboard_tui"))
    return [Path(each.origin).parent for each in found if each is not None and each.origin is not None]


def bytecode(packages: Sequence[Path]) -> Check:
    """Check that packages are compiled: where the user cannot write, each supervisor would compile them again."""
    # The demo's project is copied, and never imported.
    modules = [file for folder in packages for file in folder.rglob("*.py") if "sample" not in file.parts]
    missing = sum(not _is_compiled(module) for module in modules)
    if not missing:
        return Check("bytecode", "ok", f"{len(modules)} modules are compiled")
    remedy = f"`{shlex.join([sys.executable, '-m', 'compileall', '-q', *map(str, packages)])}` compiles them"
    owner = "" if all(os.access(folder, os.W_OK) for folder in packages) else ", for the user who installed them"
    return Check(
        "bytecode", "note", f"{missing} of {len(modules)} modules are not compiled, so agents start later",
        remedy + owner,
    )  # fmt: skip


def _is_compiled(module: Path) -> bool:
    """Return True if a module has current bytecode where an isolated interpreter looks for it."""
    compiled = module.parent / "__pycache__" / f"{module.stem}.{sys.implementation.cache_tag}.pyc"
    try:
        with compiled.open("rb") as file:
            magic, flags, changed_at, size = struct.unpack("<4s3I", file.read(16))
        found = module.stat()
    except (OSError, struct.error):
        return False
    # With flags, a hash of the source stands in the place of its time and size.
    is_current = flags or (changed_at, size) == (int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF)
    return magic == importlib.util.MAGIC_NUMBER and bool(is_current)


def _engines_here(root: Path) -> list[crewboard_engines.FoundEngine]:
    # Those with crewboard's tools are the same programs.
    return [each for each in crewboard_engines.find_all(root) if each.path is not None and each.engine.own_tools]


def engines(root: Path) -> list[Check]:
    """Check which engines are installed, and whether their versions were tested; empty without engines."""
    found = _engines_here(root)
    if not found:
        return []
    said = ", ".join(f"{each.engine.name} {each.describe()}" for each in found)
    missing = {each.engine.name: crewboard_engines.lacks_access(each.engine, os.environ) for each in found}
    to_do = [f"{name}: {text}" for name, text in missing.items() if text]
    if not all(each.is_tested for each in found):
        to_do.append("another version may behave in another way; try it on a small task first")
    return [Check("engines", "note" if to_do else "ok", said, "; ".join(to_do) or None)]


def skills(root: Path, environment: Mapping[str, str]) -> list[Check]:
    """Check that the user has accepted the project's skills; empty if there are none to accept."""
    new = skill_files.not_accepted(root, environment)
    if not new:
        return []
    detail = f"not accepted as they are now, so agents are not told of them: {', '.join(new)}"
    return [Check("skills", "note", detail, "`crewboard skills` lists them with the command that accepts each")]


def mcp(root: Path, environment: Mapping[str, str]) -> list[Check]:
    """Check that the MCP servers of the project can be used; empty if it has none."""
    try:
        found = mcp_servers.read(root)
    except BadDataError as error:
        return [
            Check("mcp", "bad", str(error), f"correct {mcp_servers.FILE}; until then agents work without its servers")
        ]
    names = [*found.servers, *found.invalid]
    if not names:
        return []
    detail = f"{mcp_servers.FILE} names {', '.join(names)}"
    if importlib.util.find_spec("mcp") is None:
        return [Check("mcp", "bad", f"{detail}; the package mcp is missing", how_to_install("mcp"))]
    new = [name for name, each in found.servers.items() if not mcp_servers.is_accepted(each, root, environment)]
    if new or found.invalid:
        return [
            Check("mcp", "note", f"{detail}; not used: {', '.join([*new, *found.invalid])}", "`crewboard mcp` says why")
        ]
    return [Check("mcp", "ok", detail)]


def tables(root: Path) -> list[Check]:
    """Check the project's descriptions and prices of models, if there are any."""
    folder = root / ".crewboard"
    names = [name for name in ("models.toml", "prices.toml") if os.path.lexists(folder / name)]
    if not names:
        return []
    try:
        pricing.load(root)
    except BadDataError as error:
        damaged = next((name for name in names if str(folder / name) in str(error)), names[0])
        return [Check(damaged, "bad", str(error), "correct or remove the file; until then no agent starts")]
    return [Check(name, "ok", str(folder / name)) for name in names]


def has_hosts(team: TeamDirectory) -> bool:
    """Return True if agents of a team run on hosts; False also if that is unknown, which another check reports."""
    try:
        return team.exists() and hosts.exist(team)
    except core.CrewboardError:
        return False


def model(team: Team, *, offline: bool, has_hosts: bool = False) -> Check:
    """Check which model workers would use, without calling it.

    A server on this machine or its network is only asked whether it answers.
    """
    environment = dict(team.worker_environment)
    if offline:
        return Check("model", "ok", "the offline model: no key, no network, no language model")
    try:
        check_credentials(environment)
    except CredentialsError as error:
        if has_hosts:
            return Check("model", "ok", "no API key here; agents get that of their hosts")
        # If the settings cannot be read, another check tells.
        config = roster.load_or_none(team.directory)
        if config is not None and config.engine is not None:
            works = f"new agents work with the engine {config.engine}, which finds its own"
            return Check("model", "ok", f"no API key; {works}")
        # It finds them itself.
        what, _, remedy = str(error).removesuffix(FINDS_MODELS).partition(": ")
        here = [each.engine for each in _engines_here(team.directory.root)]
        ready = [each.name for each in here if not crewboard_engines.needed_login(each)]
        if ready:
            remedy += f", or hire with --engine {' or '.join(ready)}, which needs none"
        elif here:
            remedy += f", or log in to {here[0].name} and hire with --engine {here[0].name}"
        return Check("model", "bad", what, remedy)
    url = endpoint.base_url(environment)
    if endpoint.is_private(url) and (found := answer(team, environment, _LOOK_TIMEOUT)).mark != "ok":
        return Check("model", found.mark, found.detail, found.remedy)
    shadowed = endpoint.shadowed_key(environment)
    key = "no key" if _is_set_by_team(team) else endpoint.credential(environment)
    detail = f"{key} for {url} (not tried: `crewboard doctor --try` does)"
    return Check("model", "note" if shadowed else "ok", detail, shadowed)


@dataclass(frozen=True)
class Answer(Check):
    """The check of a server's address or of a call.

    `said` is the server's list of models, `is_page` True for a web page.

    `status` is the HTTP status, 0 if there was no answer.
    """

    status: int = 0
    said: Any = None
    is_page: bool = False


def answer(team: Team, environment: Mapping[str, str], timeout: float) -> Answer:
    """Ask a server for its list of models, and check that it answers within `timeout` seconds.

    A redirect, or a server that takes the connection and does not answer in time, is a note; a call decides then.
    """
    url = endpoint.base_url(environment)
    through = endpoint.proxy(environment, url)
    way = f" through the proxy {endpoint.host_and_port(through)}" if through else ""
    began = time.monotonic()
    try:
        status, said = endpoint.get(environment, "/v1/models?limit=1000", timeout)
    except endpoint.RedirectedError as found:
        # The call that follows decides: the SDK goes there with some redirects.
        return Answer("address", "note", f"{found}{way}", how_to_follow(team, found), status=found.status)
    except TimeoutError:
        # After the connection: one that cannot be made is another error.
        detail = f"{url} takes connections{way}, and does not list its models within {timeout:g} s"
        return Answer("address", "note", detail, "a call decides: `crewboard doctor --try` makes one")
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or error
        words = "no answer in time" if isinstance(why, TimeoutError) else getattr(why, "strerror", None) or str(why)
        remedy = models.remedy(str(why)) or (
            "look at HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
            if through
            else "look at your network"
            if endpoint.is_anthropic(url)
            else f"start the server, or set {endpoint.url_variable(environment)} to the address that it listens on"
        )
        return Answer("address", "bad", f"{url} cannot be reached{way}: {words}", remedy)
    took = 1000 * (time.monotonic() - began)
    is_page = endpoint.is_page(said)
    said = None if is_page else said
    return Answer("address", "ok", f"{url} answered in {took:.0f} ms{way}", status=status, said=said, is_page=is_page)


def tried(team: Team, environment: dict[str, str], names: Sequence[str]) -> list[Check]:
    """Check address, key, list of models, and one call to each of the models `names`, in this order.

    What cannot work after a check that failed is left out.
    """
    # A server that the team's setting names gets no key of the shell.
    set_by_team = _is_set_by_team(team)
    unset = set_by_team or endpoint.credential(environment) is None
    if unset and not endpoint.is_anthropic(endpoint.base_url(environment)):
        # A server that asks for no key takes any.
        environment = {**environment, **dict([endpoint.ANY_TEXT.split("=")])}
    try:
        check_credentials(environment)
    except CredentialsError as error:
        what, _, remedy = str(error).partition(": ")
        return [Check("model", "bad", what, remedy)]
    reached = answer(team, environment, _TRY_TIMEOUT)
    if reached.mark == "bad":
        return [reached]
    if env.platform(environment) is not None:
        # These list no models, and their keys are tried with a call.
        return [reached, *called(team.directory.root, environment, names)]
    key = key_of(environment, reached, unset=unset, export=not set_by_team)
    calls = called(team.directory.root, environment, names)
    if key.mark == "bad":
        # A key may be for calls only.
        if all(call.status in (*_UNAUTHORIZED, 0) for call in calls if isinstance(call, Answer)):
            return [reached, key]
        key = Check(
            "key", "ok", f"{endpoint.credential(environment)} was taken for calls, and not for the list of models"
        )
    found = [reached, key, models_of(reached, names), *calls]
    advice = hire.advice_on_caps(team)
    return found if advice is None else [*found, Check("caps", "note", "the server is nearby", advice)]


def _is_set_by_team(team: Team) -> bool:
    """Return True if the server is the one of the team's setting, and not the shell's."""
    return endpoint.BASE_URL in team.worker_environment and not team.environment.get(endpoint.BASE_URL)


def key_of(environment: Mapping[str, str], reached: Answer, *, unset: bool, export: bool = True) -> Check:
    """Check whether a server took the key.

    If the key was `unset`, say which variable to set. Without `export`, the server is the team's own, and gets no key.
    """
    shadowed = endpoint.shadowed_key(environment)
    source = endpoint.credential(environment)
    # Access tokens that the SDK fetches are not sent with this question.
    if reached.status in _UNAUTHORIZED and endpoint.keys(environment):
        if unset:
            # With an address of its own, the shell's key is sent.
            url = "" if export else f"{endpoint.BASE_URL} to {endpoint.base_url(environment)}, and "
            remedy = f"set {url}ANTHROPIC_AUTH_TOKEN to the key of that server"
            return Check("key", "bad", "the server asks for a key", remedy)
        remedy = shadowed or f"set {source} to a key of this server"
        return Check("key", "bad", f"the server refused {source} ({reached.status})", remedy)
    if unset:
        if not export:
            return Check("key", "ok", "the server asks for none, and none is sent")
        return Check("key", "note", "the server takes any key", f"export {endpoint.ANY_TEXT}")
    # A web page, as of a login, says nothing about the key, whatever its status.
    is_taken = reached.status == _OK and reached.said is not None
    detail = f"{source} was taken" if is_taken else f"{source}; the server has not said if it takes it"
    return Check("key", "note" if shadowed else "ok", detail, shadowed)


def models_of(reached: Answer, wanted: Sequence[str]) -> Check:
    """Check that a server lists the models `wanted`."""
    names = models.listed(reached.said)
    if reached.status != _OK or not names:
        instead = " but serves a web page" if reached.is_page else ""
        return Check("models", "note", f"the server does not list its models{instead} ({reached.status})")
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    detail = f"{counted(len(names), 'model')}: {', '.join(names[:_NAMED])}{more}"
    # It may be listed with a date or a tag.
    unlisted = [name for name in wanted if not any(each.startswith(name) for each in names)]
    if not unlisted:
        return Check("models", "ok", detail)
    remedy = f"`crewboard settings model {shlex.quote(names[0])}` lets all new agents of the team use that one"
    return Check("models", "note", f"not listed: {', '.join(unlisted)}; {detail}", remedy)


def called(root: Path, environment: Mapping[str, str], names: Sequence[str]) -> list[Check]:
    """Call each of the models `names` once, with the code of a worker, and check the reply, and what it cost."""
    prices = pricing.load(root) if endpoint.is_anthropic(endpoint.base_url(environment)) else None
    checks, costs = [], []
    for name, found in zip(names, _called(environment, names), strict=True):
        if isinstance(found, Check):
            checks.append(found)
            continue
        assumed = "" if found["window_known"] else ", assumed: the server does not say"
        window = f"{name}: {found['window']} tokens{assumed}"
        checks.append(Check("window", "ok" if found["window_known"] else "note", window))
        if found["error"] is not None:
            remedy = models.remedy(found["error"]) or _remedy(found, environment)
            said = found["error"].removesuffix(f"; {remedy}")
            checks.append(Answer("call", "bad", f"{name}: {said}", remedy, status=found["status"] or 0))
            continue
        used = convert(found["usage"], Tokens)
        cost = prices.cost(name, used) if prices is not None else None
        costs.append(cost)
        if found["thinks"]:
            thinking = Check("thinking", "ok", f"{name} thought before it answered")
        elif found["asked_to_think"] == "adaptive":
            thinking = Check("thinking", "ok", f"{name} may think, and did not for so small a question")
        else:
            thinking = Check("thinking", "note", f"{name} is not asked to think: the server does not say that it can")
        if used.cache_read or used.cache_write:
            caching = Check("caching", "ok", f"{name}: {used.cache_write} tokens written, {used.cache_read} read")
        else:
            remedy = "some models cache only longer prompts; without a cache, each request costs the whole conversation"
            caching = Check("caching", "note", f"{name}: the server reports no tokens in a cache", remedy)
        # A worker estimates what the server does not report.
        if used.estimated or not used.total:
            remedy = "budgets of its agents are kept by an estimate (`~`): four characters are a token"
            usage = Check("usage", "note", f"{name}: the server reports no tokens", remedy)
        else:
            usage = Check("usage", "ok", f"{name}: {used.prompt} tokens in, {used.output} out")
        checks += [replace(_call(name, found, cost), status=_OK), thinking, caching, usage]
    if known := [cost for cost in costs if cost is not None]:
        unknown = len(costs) - len(known)
        rest = f", and {counted(unknown, 'call')} without a known price" if unknown else ""
        checks.append(Check("cost", "ok", f"${sum(known):.4f} for {counted(len(known), 'call')}{rest}"))
    return checks


def _called(environment: Mapping[str, str], names: Sequence[str]) -> list[dict[str, Any] | Check]:
    """Return what the probe reports of one call to each model, or a check if the probe itself failed."""
    if sys.stderr.isatty():
        common.note(f"calling {', '.join(names)} once, as an agent does: about 3000 tokens in, 100 out each")
    printed, complaints = _run_probe({**environment, env.RETRY_BUDGET: "0"}, names)
    found: list[dict[str, Any] | Check] = []
    with contextlib.suppress(ValueError):
        found += map(json.loads, printed.splitlines())
    last = redaction.redact((complaints.strip().splitlines() or ["no output"])[-1])
    broken = Check("call", "bad", f"an error in crewboard: {last}", "please report it, with the whole line")
    return [*found, *[broken] * (len(names) - len(found))]


def _run_probe(environment: Mapping[str, str], names: Sequence[str]) -> tuple[str, str]:
    """Run the probe with the environment of a worker, and return what it printed to stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-I", "-m", "crewboard.worker.probe", *names],
        env=environment,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout, done.stderr


_OTHER_KEY = "set ANTHROPIC_API_KEY, or ANTHROPIC_AUTH_TOKEN, to a key of this server"

_REMEDIES = {
    401: _OTHER_KEY,
    402: "look at the account of this key",
    403: _OTHER_KEY,
    404: "name a model that the server has with --model; if it has this one, check ANTHROPIC_BASE_URL",
    429: "the server takes no more calls for now: wait, or look at the limits of this key",
}
"""Advice about a call that failed, by its HTTP status."""


def _remedy(found: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """Return what to do about a call that failed, by the `status`, `error` and `page` that the probe reported."""
    status, gives = found["status"], endpoint.how_to_give_credentials(environment)
    url = endpoint.url_variable(environment)
    if "no progress" in found["error"]:
        return _MORE_TIME
    if gives is not None and (status in _UNAUTHORIZED or found["error"].startswith("no credentials")):
        return gives
    if status is None:
        return f"this is no reply of the Messages API: check {url}, and look at the server's log"
    if status >= _SERVER_FAILED:
        return "the server is down or busy: look at its log, or try again later"
    if found["page"]:
        return f"this address serves a web page, no API: check {url}"
    known = _REMEDIES.get(status, "the server does not take what agents send: try another model with --model")
    return known.replace(endpoint.BASE_URL, url)


def _call(name: str, found: dict[str, Any], cost: float | None) -> Answer:
    other = f" (the server names {found['model']})" if found["model"] != name else ""
    took = f"streamed in {found['seconds']:.1f} s" + (f", ${cost:.4f}" if cost is not None else "")
    if not found["calls"]:
        remedy = "agents work by calling tools: use a model, and on a local server a chat template, that can call them"
        return Answer("call", "bad", f"{name}{other} called no tool ({found['stop_reason']}), {took}", remedy)
    if found["seconds"] > _SLOW * found["timeout"]:
        limit = f"a reply that does not go on within {found['timeout']:g} s is cancelled"
        return Answer("call", "note", f"{name}{other} called a tool, {took}; {limit}", _MORE_TIME)
    return Answer("call", "ok", f"{name}{other} called a tool, {took}")


def sandbox(root: Path, environment: Mapping[str, str]) -> Check:
    """Check which sandbox works here, by trying."""
    try:
        found = level.find(policy.Policy(root.resolve(), writes=True), environment)
    except UsageError as error:
        return Check("sandbox", "bad", str(error), "unset it, or set it to auto")
    detail = f"{found.level}: {level.MEANING[found.level]}"
    if found.level == "bubblewrap":
        return Check("sandbox", "ok", detail)
    why = "; ".join(found.reasons)
    return Check("sandbox", "note" if found.level == "landlock" else "bad", f"{detail} ({why})", found.remedy)


def system() -> list[Check]:
    """Return a note about what is weaker on a system that is not Linux; empty on Linux."""
    if not env.is_posix():
        return []
    why = f"{env.PLATFORM} is posix" if sys.platform == "linux" else f"this is {sys.platform}: not tested there yet"
    detail = (
        f"{why}: no sandbox, other programs of yours can read the memory of agents, each agent starts a new "
        "interpreter, and how an agent ended that outlived its supervisor is not known"
    )
    remedy = f"unset {env.PLATFORM}" if sys.platform == "linux" else "docs/containers.md: the image has all of it"
    return [Check("system", "note", detail, remedy)]


def root_user() -> list[Check]:
    """Check that crewboard does not run as root; empty if it does not."""
    if not process.runs_as_root():
        return []
    remedy = "run crewboard as an ordinary user: a hole in the sandbox would be a hole in the machine"
    return [Check("user", "note", "crewboard and its agents run as root", remedy)]


def memory() -> Check:
    """Check how the memory limits of agents are enforced: by the kernel, or by the supervisor."""
    group = process.find_memory_cgroup()
    if group is not None:
        return Check("memory", "ok", f"memory limits: cgroup, below {group}")
    remedy = "with systemd, `systemd-run --user --scope bash` opens a shell whose teams get cgroups"
    return Check("memory", "note", "memory limits: watched, because no cgroup is delegated to you", remedy)


def watcher() -> Check:
    """Check that file events arrive."""
    with tempfile.TemporaryDirectory(prefix="crewboard-doctor-") as folder:
        seen = threading.Semaphore(0)
        watching = readmodel_watcher.Watcher(Path(folder), seen.release)
        watching.start()
        try:
            seen.acquire(timeout=HINT_WITHIN)
            (Path(folder) / "hint").write_text("")
            hinted = watching.hinted and seen.acquire(timeout=HINT_WITHIN / 4)
        finally:
            watching.stop()
    if hinted:
        return Check("watcher", "ok", "file events arrive")
    remedy = "raise fs.inotify.max_user_watches and max_user_instances (sysctl)"
    why = f" ({watching.refusal})" if watching.refusal else ""
    return Check("watcher", "note", f"no file events{why}; the view is read once a second", remedy)


def files(team: TeamDirectory) -> Check:
    """Check that the root can hold a team: that it is writable, has space, and is on a suitable file system."""
    root = team.root
    if not os.access(root, os.W_OK):
        return Check("root", "bad", f"{root} cannot be written to", "choose another with --root")
    # A full disk grants access all the same.
    if (state := disk_state(root)) is not None:
        return Check("root", "bad", f"{root}: {state}", "free some space, or choose another root with --root")
    kind = common.file_system(team.path)
    if kind in common.OF_THE_HOST:
        remedy = "use the team from this side alone; changes made on the other side are seen late"
        return Check("root", "note", f"{root} is on {kind}, a folder of another machine", remedy)
    if kind not in common.NETWORK:
        return Check("root", "ok", str(root))
    if is_in_files(team):
        return Check("root", "bad", common.on_network(team, kind), common.OFF_NETWORK)
    remedy = "give each host a root on a disk of its own: worktrees and locks of files are below it"
    return Check("root", "note", f"{root} is on {kind}", remedy)


def is_in_files(team: TeamDirectory) -> bool:
    """Return True if the records of a team are in its folder, or will be; False also if that is unknown."""
    try:
        return team.address is None
    except StorageError:
        return False


def database(team: TeamDirectory) -> list[Check]:
    """Check the database of a team: that it answers, its clock, and the team's hosts; empty for a team in files."""
    try:
        address = team.address
        if address is None:
            return []
        _ = team.config.get()
        clock = hosts.compare_clocks(team)
        view = core.TeamReader(team).read(measured=0)
    except core.CrewboardError as error:
        remedy = "start the server, or see PGPASSFILE and PGSERVICE for how to name a password"
        return [Check("store", "bad", str(error), remedy)]
    answered = f"{address.partition('?')[0]} answered in {1000 * clock.round_trip:.2g} ms"
    found = [Check("store", "ok", f"{answered}, tables of version {SCHEMA_VERSION}"), time_of(clock)]
    return [*found, hosts_of(view)] if view.hosts else found


def time_of(clock: hosts.Clock) -> Check:
    """Check the clock of this machine against that of the store."""
    certain = abs(clock.ahead) - clock.round_trip / 2
    detail = f"{abs(clock.ahead):.1f} s {'ahead of' if clock.ahead > 0 else 'behind'} the store's"
    if certain > _CLOCK_MAY_DIFFER:
        remedy = "set it (`timedatectl set-ntp true`): ages and times on the screen are wrong; leases are not affected"
        return Check("clock", "note", detail, remedy)
    return Check("clock", "ok", detail)


def hosts_of(view: core.TeamView) -> Check:
    """Check that hosts run the agents of the team, and that none was lost."""
    up = ", ".join(host.name for host in view.hosts if host.is_up)
    alone = {need.host: need for need in view.needs if need.kind == "no_host" and need.host is not None}
    gone = [host.name for host in view.hosts if host.state == "lost" and host.name not in alone]
    detail = f"up: {up or 'none'}" + (f"; lost: {', '.join(gone)}" if gone else "")
    detail = "; ".join([detail, *(need.summary for need in alone.values())])
    starts = [command for need in alone.values() for _, command in ways_to_begin(need)]
    remedies = [f"`crewboard {command}` there" for command in starts]
    if not up:
        remedies.append("no agent starts before a host is up: `crewboard host` on each machine")
    elif gone:
        remedies.append("`crewboard status` names its agents, and `crewboard resume NAME...` lets them go on elsewhere")
    mark: Mark = "bad" if not up else "note" if gone or alone else "ok"
    return Check("hosts", mark, detail, "; ".join(remedies) or None)


def terminal() -> Check:
    """Check the terminal's size, colours and encoding."""
    if not sys.stdout.isatty():
        return Check("terminal", "note", "stdout is not a terminal", "run `crewboard` in one for the dashboard")
    size = shutil.get_terminal_size()
    colours = "256 colours" if "256" in os.environ.get("TERM", "") else "16 colours"
    if os.environ.get("COLORTERM") in ("truecolor", "24bit"):
        colours = "16 million colours"
    if os.environ.get("NO_COLOR"):
        colours = "no colours"
    glyphs = "UTF-8" if env.speaks_utf8() else "ASCII"
    detail = f"{os.environ.get('TERM', 'no TERM')}, {size.columns} × {size.lines}, {colours}, {glyphs}"
    if glyphs == "ASCII":
        return Check("terminal", "note", detail, "the dashboard draws with ASCII; for more, set a UTF-8 locale")
    if size < _SMALLEST:
        return Check("terminal", "note", detail, "60 × 12 or more shows everything that matters")
    return Check("terminal", "ok", detail)


def settings_files(root: Path, environment: Mapping[str, str]) -> list[Check]:
    """Check the user's and the project's files of settings; empty if there are none."""
    from crewboard_tui import settings

    found, mine = settings.read_files(root, environment), settings.user_file(environment)
    files = [str(file) for file in (mine, settings.project_file(root)) if os.path.lexists(file)]
    accept = f"`{shlex.join(['crewboard', *root_options(root), 'config', '--trust'])}` shows and accepts it"
    if wrong := (*found.problems, *found.unknown):
        remedy = "correct that, or remove the line; `crewboard config` lists all settings"
        return [Check("settings", "bad" if found.problems else "note", "; ".join(wrong), remedy)]
    if found.changed:
        detail = f"{settings.project_file(root)} {found.changed}, so no new team is made"
        return [Check("settings", "bad", detail, accept)]
    if found.waiting:
        detail = f"{settings.project_file(root)} is not accepted, so new teams begin without {', '.join(found.waiting)}"
        return [Check("settings", "note", detail, accept)]
    return [Check("settings", "ok", f"{' and '.join(files)}: {counted(len(found.given), 'value')}")] if files else []


def keymap() -> list[Check]:
    """Check the user's key file, if there is one."""
    from crewboard_tui.keymap.user_file import keymap_path, read_keymap

    file = keymap_path()
    found = read_keymap(file)
    if not found.keys and not found.problems:
        return []
    if found.problems:
        remedy = "`crewboard keys` prints every id with its keys"
        # One about the whole file begins with its path.
        problems = "; ".join(found.problems).removeprefix(f"{file} ")
        return [Check("keys", "note", f"{file}: {problems}", remedy)]
    return [Check("keys", "ok", f"{file}: {len(found.keys)} of your own")]


def hook() -> list[Check]:
    """Check the user's hook, if there is one, without running it."""
    from crewboard.supervisor.hook import HOOK_FILE, read_hook

    path = env.config_home(os.environ) / HOOK_FILE
    try:
        found = read_hook(path)
    except ValueError as error:
        return [Check("hook", "bad", str(error), "correct it: nothing is told while you are away; see the guide")]
    if found is None:
        return []
    # Its arguments, often the address of a chat, are a secret.
    if path.stat().st_mode & 0o077:
        return [Check("hook", "note", f"{path}: other users can read it", f"chmod 600 {path}")]
    return [Check("hook", "ok", f"{path}: runs {found.command[0]} (not tried)")]


def git(root: Path) -> Check:
    """Check that git is installed and that it uses the repository of the workspace."""
    # Imported here because it loads much that no other check needs.
    from crewboard.worktrees import repository

    try:
        program = repository.find_git(root)
    except repository.NoRepositoryError as error:
        return Check("git", "note", str(error), "install git to review what agents change")
    version = ""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        said = subprocess.run(
            [program, "--version"],
            capture_output=True, text=True, timeout=10, check=False, cwd="/", env=repository.git_environment(),
        )  # fmt: skip
        version = said.stdout.strip().removeprefix("git version ")
    # An agent may have written settings there: this runs git so that they start no program.
    try:
        repository.open_repository(root)
    except repository.NoRepositoryError as error:
        return Check("git", "note", f"{version}; {error}", "until then, what agents change cannot be seen and undone")
    if unprotected := sandbox_git.git_files(Path(os.path.realpath(root))).unprotected:
        remedy = "an agent's programs could run with your rights when git runs here; see docs/reference/sandbox.md"
        return Check("git", "note", f"{version}; {'; '.join(unprotected)}", remedy)
    return Check("git", "ok", f"{version}, and the root is in a repository")


def plans(root: Path) -> list[Check]:
    """Check, for the workspace's attached teams, their version of Claude Code and who approves their plans."""
    from crewboard.attach.install import missing_reason

    teams = [team for team in team_directories(root) if not team.is_foreign()]
    attached = [roster.load(team).attached for team in teams if roster.is_attached(team)]
    found = []
    oldest, *_, newest = formats.TESTED
    for version in dict.fromkeys(each.version for each in attached if each is not None and each.version):
        fine = formats.is_tested(version)
        says = f"{version}, within the tested range" if fine else f"{version}, outside of the tested range"
        remedy = "what it writes may be read wrongly; look for a newer crewboard" if not fine else ""
        found.append(Check("claude code", "ok" if fine else "note", f"{says} {oldest} to {newest}", remedy))
    for project in dict.fromkeys(Path(each.cwd or root) for each in attached if each is not None):
        why = missing_reason(project)
        if why is None:
            found.append(Check("plans", "ok", f"you approve: hooks in {project}, for sessions that started after them"))
        else:
            remedy = "`crewboard attach --install`, then start the session of Claude Code again"
            found.append(Check("plans", "note", f"Claude Code approves by itself: {why}", remedy))
    return found


@click.command()
@click.option("--try", "try_", is_flag=True, help="Also call a model once, as an agent does; costs less than a cent.")
@click.option("--online", is_flag=True, help="Also call each model that the team uses once; costs a few cents.")
@click.option(
    "--model", "model_name", metavar="M", help="With --try: the model to call; else that of a cheap new agent."
)
@as_json
def doctor(session: Session, try_: bool, online: bool, model_name: str | None) -> None:
    """Check the setup and suggest fixes.

    Looks at Python, the API key, the sandbox, memory limits, file events, the workspace and its disk, the team's
    database, clock and hosts, the terminal, your settings and the project's, your keys, your hook, git, who approves
    plans of attached teams, and the project's models.toml and prices.toml. The exit code is 0 whatever it finds; in
    --json, `mark` is ok, note or bad.

    With --try, also the server of the model: address, proxy, key, models, window, and one streamed call with tools,
    made by the code of a worker. It says whether the model thinks, and what was cached. On Anthropic's API that costs
    less than a cent with the cheapest model.

    With --online, the same for each model of the team's agents, and of a new agent of each type; with what it cost.

    Example: crewboard doctor --try --model qwen3-coder
    """
    if model_name is not None and not try_:
        raise UsageError("--model is for --try")
    # What a new agent of the cheapest type would use.
    team, cheapest = session.team, agent_types.TYPES["explore"]
    to_try = [hire.choose_model(cheapest, model_name, team.worker_environment, team.config)] if try_ else []
    found = all_checks(session, list(dict.fromkeys([*to_try, *(models_in_use(session.team) if online else ())])))
    if session.as_json:
        say_json([asdict(check) for check in found])
        return
    for check in found:
        say(f"{check.mark:<5} {check.name:<9} {safe_line(check.detail)}")
        if check.remedy:
            say(f"{'':<15} → {check.remedy}")


def models_in_use(team: Team) -> list[str]:
    """Return the models of a team's agents, and of a new agent of each type that the user has accepted."""
    environment, config = team.worker_environment, team.config
    kinds = type_files.find_all(team.directory.root)[0].values()
    new = [
        hire.choose_model(kind, None, environment, config)
        for kind in kinds
        if type_files.is_accepted(kind, environment)
    ]
    return list(dict.fromkeys([*(member.model for member in config.members if member.model), *new]))


@click.command()
@as_json
def info(session: Session) -> None:
    """Print the main paths that crewboard uses here, and whether they exist.

    These are the program, the workspace and its teams, the project's files, your settings, and saved state. Nothing is
    made or changed. A supervisor listens in the first of the folders of sockets that is yours alone.
    """
    from crewboard import consent
    from crewboard.attach import places
    from crewboard.commands import profiles
    from crewboard.protocol import supervisor_client
    from crewboard.store import team_marks
    from crewboard.supervisor.hook import HOOK_FILE
    from crewboard_tui import settings
    from crewboard_tui.keymap.user_file import keymap_path

    root = session.root
    mine = settings.Settings.read(os.environ)
    own = {
        "your settings": settings.user_file(os.environ),
        "drafts": mine.drafts,
        "sent texts": mine.sent,
        "last visits": mine.visits,
        "theme": mine.remembers,
    }
    accepted = {"types": "types", "skills": "skills", "MCP servers": "mcp", "settings": "settings"}
    sockets = zip(("", " (2nd choice)", " (3rd choice)"), supervisor_client.socket_folders(os.environ), strict=False)
    paths = {
        "program": Path(sys.argv[0]).absolute(),
        "python": Path(sys.executable),
        "workspace": root,
        "teams": root / HOME,
        **{f"team {team.path.name}": team.path for team in team_directories(root)},
        "settings": settings.project_file(root),
        "models": models.project_file(root),
        "prices": pricing.project_file(root),
        **dict(zip(("types", "types (Claude Code)"), (root / folder for folder in type_files.FOLDERS), strict=True)),
        "skills": root / type_files.SKILLS_FOLDER,
        "MCP servers": root / mcp_servers.FILE,
        "key bindings": keymap_path(),
        "hook": env.config_home(os.environ) / HOOK_FILE,
        "profiles": profiles.folder(os.environ),
        "your skills": Path("~", type_files.SKILLS_FOLDER).expanduser(),
        "Claude Code": places.config_dir(os.environ),
        **{name: path for name, path in own.items() if path is not None},
        **{f"accepted {name}": consent.folder(what, os.environ) for name, what in accepted.items()},
        "ownership secret": team_marks.secret_file(),
        **{f"sockets{which}": folder for which, folder in sockets},
    }
    found = [{"name": name, "path": str(path), "exists": os.path.lexists(path)} for name, path in paths.items()]
    width = max(map(len, paths))
    lines = (f"{x['name']:<{width}}  {x['path']}{'' if x['exists'] else '  (not there)'}" for x in found)
    session.tell(found, *lines)
