"""The command `doctor` and its checks."""

import importlib.metadata
import importlib.util
import locale
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import click

import crewboard as core
from crewboard import BadDataError, CredentialsError, StorageError, UsageError
from crewboard_tui.cli import common
from crewboard_tui.cli.common import Session, as_json, say, say_json

Mark = Literal["ok", "note", "bad"]

HINT_WITHIN = 2.0
"""Seconds to wait for a file event."""

_CLOCK_MAY_DIFFER = 2.0
"""Seconds by which the clock of this machine may differ from the store's."""

_OLDEST_PYTHON = (3, 11)
_SMALLEST = (60, 12)


@dataclass(frozen=True)
class Check:
    """The result of one check, with a remedy if something is wrong."""

    name: str
    mark: Mark
    detail: str
    remedy: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the check as `doctor --json` prints it."""
        return asdict(self)


def all_checks(session: Session) -> list[Check]:
    """Run all checks, the most important first."""
    environment = session.team.worker_environment
    return [
        python(),
        model(core.env.is_offline(environment), dict(environment), has_hosts=has_hosts(session.team.directory)),
        sandbox(session.root, environment),
        *root_user(),
        memory(),
        watcher(),
        files(session.team.directory),
        *database(session.team.directory),
        terminal(),
        *keymap(),
        *hook(),
        git(session.root),
        *plans(session.root),
        *mcp(session.root, environment),
    ]


def python() -> Check:
    """Check the interpreter and the SDK."""
    version = platform.python_version()
    try:
        sdk = importlib.metadata.version("anthropic")
    except importlib.metadata.PackageNotFoundError:
        return Check("python", "bad", f"{version}, without the anthropic SDK", "install crewboard again")
    if sys.version_info < _OLDEST_PYTHON:
        return Check("python", "bad", version, "crewboard needs Python 3.11 or newer")
    return Check("python", "ok", f"{version}, anthropic {sdk}")


def mcp(root: Path, environment: Mapping[str, str]) -> list[Check]:
    """Check that the MCP servers of the project can be used."""
    try:
        found = core.mcp_servers.read(root)
    except BadDataError as error:
        return [
            Check(
                "mcp", "bad", str(error), f"correct {core.mcp_servers.FILE}; until then agents work without its servers"
            )
        ]
    names = [*found.servers, *found.invalid]
    if not names:
        return []
    detail = f"{core.mcp_servers.FILE} names {', '.join(names)}"
    if importlib.util.find_spec("mcp") is None:
        return [Check("mcp", "bad", f"{detail}; the package mcp is missing", "pip install 'crewboard[mcp]'")]
    new = [name for name, each in found.servers.items() if not core.mcp_servers.is_accepted(each, root, environment)]
    if new or found.invalid:
        return [
            Check("mcp", "note", f"{detail}; not used: {', '.join([*new, *found.invalid])}", "`crewboard mcp` says why")
        ]
    return [Check("mcp", "ok", detail)]


def has_hosts(team: core.store.TeamDirectory) -> bool:
    """Return True if agents of a team run on hosts. If that is unknown, say so elsewhere."""
    try:
        return team.exists() and core.store.hosts.exist(team)
    except core.CrewboardError:
        return False


def model(offline: bool, environment: dict[str, str], *, has_hosts: bool = False) -> Check:
    """Check which model workers would use, without sending a request."""
    if offline:
        return Check("model", "ok", "the offline model: no key, no network, no language model")
    try:
        core.commands.check_credentials(environment)
    except CredentialsError as error:
        if has_hosts:
            return Check("model", "ok", "no API key here; agents get that of their hosts")
        return Check("model", "bad", "no API key", str(error).partition(": ")[2])
    which = "ANTHROPIC_API_KEY" if environment.get("ANTHROPIC_API_KEY") else "ANTHROPIC_AUTH_TOKEN"
    where = environment.get("ANTHROPIC_BASE_URL") or "the SDK's own address"
    return Check("model", "ok", f"{which} is set (not tried), for {where}")


def sandbox(root: Path, environment: Mapping[str, str]) -> Check:
    """Try which sandbox works here."""
    try:
        found = core.sandbox.level.find(core.sandbox.policy.Policy(root.resolve(), writes=True), environment)
    except UsageError as error:
        return Check("sandbox", "bad", str(error), "unset it, or set it to auto")
    detail = f"{found.level}: {core.sandbox.level.MEANING[found.level]}"
    if found.level == "bubblewrap":
        return Check("sandbox", "ok", detail)
    why = "; ".join(found.reasons)
    return Check(
        "sandbox", "note" if found.level == "landlock" else "bad", f"{detail} ({why})", core.sandbox.level.REMEDY
    )


def root_user() -> list[Check]:
    """Check that crewboard does not run as root."""
    if not core.linux.process.runs_as_root():
        return []
    remedy = "run crewboard as an ordinary user: a hole in the sandbox would be a hole in the machine"
    return [Check("user", "note", "crewboard and its agents run as root", remedy)]


def memory() -> Check:
    """Check how the memory limits of agents are kept."""
    group = core.linux.process.find_memory_cgroup()
    if group is not None:
        return Check("memory", "ok", f"memory limits: cgroup, below {group}")
    remedy = "with systemd, `systemd-run --user --scope bash` opens a shell whose teams get cgroups"
    return Check("memory", "note", "memory limits: watched, because no cgroup is delegated to you", remedy)


def watcher() -> Check:
    """Check that file events arrive."""
    with tempfile.TemporaryDirectory(prefix="crewboard-doctor-") as folder:
        seen = threading.Semaphore(0)
        watching = core.readmodel.watcher.Watcher(Path(folder), seen.release)
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


def files(team: core.store.TeamDirectory) -> Check:
    """Check that the workspace can hold a team."""
    root = team.root
    if not os.access(root, os.W_OK):
        return Check("root", "bad", f"{root} cannot be written to", "choose another with --root")
    kind = core.linux.mounts.file_system(team.path)
    if kind in core.linux.mounts.OF_THE_HOST:
        remedy = "use the team from this side alone; changes made on the other side are seen late"
        return Check("root", "note", f"{root} is on {kind}, a folder of another machine", remedy)
    if kind not in core.linux.mounts.NETWORK:
        return Check("root", "ok", str(root))
    if is_in_files(team):
        return Check("root", "bad", common.on_network(team, kind), common.OFF_NETWORK)
    remedy = "give each host a root on a disk of its own: worktrees and locks of files are below it"
    return Check("root", "note", f"{root} is on {kind}", remedy)


def is_in_files(team: core.store.TeamDirectory) -> bool:
    """Return True if the records of a team are in its folder, or will be. If that is unknown, say so elsewhere."""
    try:
        return team.address is None
    except StorageError:
        return False


def database(team: core.store.TeamDirectory) -> list[Check]:
    """Check the database of a team that is not kept in files: that it answers, its clock, and the team's hosts."""
    try:
        address = team.address
        if address is None:
            return []
        _ = team.config.get()
        clock = core.store.hosts.compare_clocks(team)
        view = core.TeamReader(team, probe=core.readmodel.NoUsageProbe()).read()
    except core.CrewboardError as error:
        remedy = "start the server, or see PGPASSFILE and PGSERVICE for how to name a password"
        return [Check("store", "bad", str(error), remedy)]
    answered = f"{address.partition('?')[0]} answered in {1000 * clock.round_trip:.2g} ms"
    found = [Check("store", "ok", f"{answered}, tables of version {core.store.SCHEMA_VERSION}"), time_of(clock)]
    return [*found, hosts_of(view)] if view.hosts else found


def time_of(clock: core.store.hosts.Clock) -> Check:
    """Check the clock of this machine against the store's."""
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
    starts = [command for need in alone.values() for _, command in core.readmodel.ways_to_begin(need)]
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
    colours = "no colours" if os.environ.get("NO_COLOR") else _colours()
    encoding = locale.getpreferredencoding(do_setlocale=False)
    detail = f"{os.environ.get('TERM', 'no TERM')}, {size.columns} × {size.lines}, {colours}, {encoding}"
    if encoding.lower().replace("-", "") != "utf8":
        return Check("terminal", "note", detail, "`crewboard board --ascii`, or a UTF-8 locale")
    if size < _SMALLEST:
        return Check("terminal", "note", detail, "60 × 12 or more shows everything that matters")
    return Check("terminal", "ok", detail)


def keymap() -> list[Check]:
    """Check the user's key file, if there is one."""
    from crewboard_tui.keymap import keymap_path, read_keymap

    file = keymap_path()
    found = read_keymap(file)
    if not found.keys and not found.problems:
        return []
    if found.problems:
        remedy = "`crewboard keys` prints every id with its keys"
        return [Check("keys", "note", f"{file}: {'; '.join(found.problems)}", remedy)]
    return [Check("keys", "ok", f"{file}: {len(found.keys)} of your own")]


def hook() -> list[Check]:
    """Check the user's hook, if there is one, without running it."""
    from crewboard.supervisor.notifier import HOOK_FILE, read_hook

    path = core.env.config_home(os.environ) / HOOK_FILE
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


def _colours() -> str:
    if os.environ.get("COLORTERM") in ("truecolor", "24bit"):
        return "16 million colours"
    return "256 colours" if "256" in os.environ.get("TERM", "") else "16 colours"


def git(root: Path) -> Check:
    """Check that git is installed and that the workspace is in a repository."""
    program = core.linux.programs.find_program("git", root)
    if program is None:
        why = core.linux.programs.passed_over("git") or "not installed"
        return Check("git", "note", why, "install git to review what agents change")
    version = _output([str(program), "--version"]).removeprefix("git version ")
    # Do not run git in the workspace: it would obey settings that an agent may have written.
    if any((folder / ".git").exists() for folder in (root, *root.parents)):
        if unprotected := core.sandbox.git.git_files(Path(os.path.realpath(root))).unprotected:
            remedy = "an agent's programs could run with your rights when you use git here; see SECURITY.md"
            return Check("git", "note", f"{version}; {'; '.join(unprotected)}", remedy)
        return Check("git", "ok", f"{version}, and the root is in a repository")
    return Check("git", "note", f"{version}; the root is in no repository", "run `git init` to see and undo changes")


def plans(root: Path) -> list[Check]:
    """Check who approves the plans of the attached teams of the workspace."""
    from crewboard.attach.install import missing_reason

    teams = [team for team in core.store.team_directories(root) if not team.is_foreign()]
    attached = [core.store.roster.load(team).attached for team in teams if core.store.roster.is_attached(team)]
    found = []
    oldest, *_, newest = core.attach.formats.TESTED
    for version in dict.fromkeys(each.version for each in attached if each is not None and each.version):
        fine = core.attach.formats.is_tested(version)
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


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
            cwd="/",
            env=core.linux.programs.clean_environment(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


@click.command()
@as_json
@click.pass_obj
def doctor(session: Session, as_json: bool) -> None:
    """Check the setup and suggest fixes.

    Looks at Python, the API key, the sandbox, memory limits, file events, the workspace and its disk, the team's
    database, clock and hosts, the terminal, your keys, your hook, git, and who approves plans of attached teams. The
    exit code is 0 whatever it finds; in --json, `mark` is ok, note or bad.
    """
    found = all_checks(session)
    if as_json:
        say_json([check.as_json() for check in found])
        return
    for check in found:
        say(f"{check.mark:<5} {check.name:<9} {check.detail}")
        if check.remedy:
            say(f"{'':<15} → {check.remedy}")
