"""Export a team from its store into plain files, and import such files into a team; the contents stay as they are."""

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from crewboard.commands import hosts
from crewboard.commands.context import Team, create_command
from crewboard.errors import BadDataError, TryLaterError, UsageError
from crewboard.protocol import requests, supervisor_client
from crewboard.records.processes import Exit
from crewboard.records.team import Config
from crewboard.store import agents, files, roster, tasks
from crewboard.store import hosts as store_hosts
from crewboard.store.interface import Store
from crewboard.store.json_records import RecordKey
from crewboard.store.layout import TeamDirectory, record_of

_FOLDERS = ("inbox", "results", "tasks", "requests", "agents", "removed", "workspaces", "bundles")
"""Folders of a team with records and logs. Others belong to one machine: locks, worktrees, open dashboards."""

_KINDS = (".json", ".jsonl", ".md", ".txt", ".diff", ".part")
"""Endings of the names of records and logs. Leases and logs of processes have other names."""


def export(team: Team, folder: Path) -> int:
    """Write all that is stored of a team as files into a folder, which must be new or empty; return how many files.

    Raises:
        UsageError: There is no team, or the folder is not empty.
        BadDataError: A log of the team has a line that is too long.
        StorageError: The store or the folder failed.
    """
    _require_team(team)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not an empty folder: name a new one")
    with files.storage_errors(f"cannot create {folder}"):
        files.make_private_folders(folder)
    target = record_of(folder / "config.json", Config)
    count = _copy(team.directory.store, target.store)
    # On this machine, or on a host.
    if roster.uses_offline_model(team.directory) or any(host.offline for host in store_hosts.load_all(team.directory)):
        _change(target, offline=True)
    return count + _copy_files(team.directory.path, folder)


def _require_team(team: Team) -> None:
    directory = team.directory
    if not directory.exists():
        name, root = directory.path.name, directory.root
        raise UsageError(f"there is no team {name} in {root}; `{create_command(root, name)}` makes it")
    if not directory.config.exists():
        # It raises: without a roster, what is exported could not be imported.
        roster.load(directory)


def _change(place: RecordKey[Config], **changes: object) -> None:
    """Set fields of a copied team's `config.json`; do not write the file if they have these values already."""
    config = place.load_or_none()
    if config is not None and any(getattr(config, name) != value for name, value in changes.items()):
        place.save(config.replace(**changes))


@contextlib.contextmanager
def taken_in(team: Team, folder: Path) -> Iterator[TeamDirectory]:
    """Copy a folder that `export` made into a private temporary one, and yield the copy, to import it into `team`.

    So what is imported is what the user has looked at, even if an agent changes `folder` meanwhile.

    Raises:
        UsageError: The folder contains no exported team, or `team` does not exist or has agents.
        UntrustedError: `team` is foreign.
        BadDataError: Something in the folder is damaged, or neither a folder nor a regular file, such as a link.
        StorageError: It cannot be copied.
    """
    if not (folder / "config.json").is_file():
        raise UsageError(f"there is no team in {folder}: name a folder that `crewboard export` wrote")
    _require_plain(folder)
    _require_room(team)

    def others(above: str, names: list[str]) -> set[str]:
        return {each for each in names if (folder / each).is_dir()} - {*_FOLDERS} if Path(above) == folder else set()

    with tempfile.TemporaryDirectory(prefix="import-", dir=team.directory.path) as own:
        copy = Path(own) / folder.resolve().name
        with files.storage_errors(f"cannot copy {folder}"):
            shutil.copytree(folder, copy, symlinks=True, ignore=others, copy_function=shutil.copyfile)
        try:
            # Again, because one could come in between.
            _require_plain(copy)
            yield TeamDirectory(copy)
        except BadDataError as error:
            raise BadDataError(str(error).replace(str(copy), str(folder))) from error


def sha256(exported: TeamDirectory) -> str:
    """Return the SHA-256 of an exported team: of the names and contents of all of its files, as hexadecimal digits."""
    whole = hashlib.sha256()
    for path in sorted(exported.path.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256")
            # No name contains a NUL.
            whole.update(os.fsencode(path.relative_to(exported.path)) + b"\0" + content.digest())
    return whole.hexdigest()


def import_(team: Team, exported: TeamDirectory) -> int:
    """Replace all that is stored of a team without agents by an exported one, from `taken_in`; return how many files.

    Runs whose end was not exported are recorded as ended, and their tasks and requests are released and cancelled.

    Raises:
        UsageError: The team does not exist, or it has agents.
        UntrustedError: The team is foreign.
        TryLaterError: A host of the team is up, or its supervisor does not end.
        StorageError: The store or the folder failed; if the team is in a database, it is unchanged.
    """
    _require_room(team)
    for host in sorted(team.directory.hosts.names()):
        if store_hosts.is_up(team.directory, host):
            raise TryLaterError(f"the host {host} of {team.directory.path.name} is up: end it, and try again")
    hosts.end_supervisor(team.directory)
    source = exported.store
    for name in (*_FOLDERS, *(f"agents/{each}" for each in source.names("agents"))):
        team.directory.make_folder(name)
    count = team.directory.lock("import").locked(lambda: _replace(source, team.directory))
    # A run of which no end was exported: if it goes on, it is in the other team. No agent is told.
    now = team.now()
    for name in () if roster.is_attached(team.directory) else team.directory.agent_names():
        agent = team.directory.agent(name)
        status = agent.status.load_or_none()
        if status is not None and supervisor_client.is_unfinalized(agent):
            tasks.release(agent.team, name, now)
            requests.cancel_requests_of(agent.team, name, now)
            ended = agents.write_exit(agent, Exit(run=status.run, reason="exported", at=status.beat))
            agents.mark_finalized(agent, ended)
    return count + _copy_files(exported.path, team.directory.path)


def _require_room(team: Team) -> None:
    """Check that a team can be imported into: it exists, is not foreign, and has no agents."""
    _require_team(team)
    team.directory.require_adopted()
    if team.config.members or team.directory.agent_names() or team.directory.removed.names():
        raise UsageError(
            f"the team {team.directory.path.name} has agents: import into a new one, `crewboard team create`"
        )


def _require_plain(folder: Path) -> None:
    """Check that a folder contains only folders and regular files: a link could bring in any file of this machine.

    Raises:
        BadDataError: It contains something else.
    """
    for above, folders, names, opened in os.fwalk(folder, follow_symlinks=False):
        if Path(above) == folder:
            folders[:] = [name for name in folders if name in _FOLDERS]
        for name in (*folders, *names):
            mode = os.stat(name, dir_fd=opened, follow_symlinks=False).st_mode
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                raise BadDataError(
                    f"{Path(above) / name} is a link, or no regular file: `crewboard export` writes none"
                )


def _replace(source: Store, team: TeamDirectory) -> int:
    target = team.store
    for name, is_folder in list(_names(target)):
        if not is_folder:
            target.remove(name)
    count = _copy(source, target)
    # With the name of the exported team, a command for that one could find this one.
    _change(team.config, name=team.path.name)
    return count


def _copy(source: Store, target: Store) -> int:
    """Copy all records and logs to a store that has none of these names; return how many.

    Raises:
        BadDataError: A log has a line that is too long.
    """
    count = 0
    for name, is_folder in _names(source):
        if is_folder:
            target.make_folder(name)
            continue
        count += 1
        if not name.endswith(".jsonl"):
            target.put(name, source.get(name) or b"")
            continue
        end = 0
        for line, _ in source.read(name):
            if line is None:
                raise BadDataError(f"{source.describe(name)} has a line of more than {files.MAX_LINE} bytes")
            end = target.append(name, line + b"\n", at=end)
    return count


def _names(source: Store, folder: str = "") -> Iterator[tuple[str, bool]]:
    """Yield the names of all folders, records and logs, and whether each is a folder; a folder before what is in it."""
    for each in sorted(source.names(folder)):
        name = f"{folder}/{each}" if folder else each
        if (
            name == "tasks/.last-id"
            or folder.endswith("/media")
            or (not each.startswith(".") and each.endswith(_KINDS))
        ):
            yield name, False
            continue
        match name.split("/"):
            case [top]:
                has_records = top in _FOLDERS
            case ["agents" | "removed", inside]:
                has_records = not inside.startswith(".")
            case ["removed", _, "agent"] | ["agents", _, "media"] | ["removed", _, "agent", "media"]:
                has_records = True
            case _:
                has_records = False
        if has_records:
            yield name, True
            yield from _names(source, name)


def _copy_files(source: Path, target: Path) -> int:
    """Copy the contents of files that agents changed (`agents/NAME/kept`), which are in no store; return how many."""
    count = 0
    # They are no records, but belong to the history of an agent.
    for file in sorted((source / "agents").glob("*/kept/*")):
        place = target / file.relative_to(source)
        with files.storage_errors(f"cannot copy {file}"):
            files.make_private_folders(place.parent)
            content = file.read_bytes()
        files.replace_file(place, content)
        count += 1
    return count
