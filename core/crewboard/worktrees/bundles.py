"""Git bundles in the store of a team, by which commits get from users to hosts and back.

A bundle is stored in parts, records of at most 4 MiB. The record that lists the bundle is written after all parts, so
that a writer that is killed leaves only parts that nothing lists, which `sweep` removes later. A bundle that is read is
not trusted: git checks its objects strictly, and the refs in it are ignored.
"""

import contextlib
import os
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from crewboard.errors import BadDataError, StorageError, UsageError
from crewboard.records.team import Bundle
from crewboard.store.layout import TeamDirectory
from crewboard.worktrees.repository import PACK_HEADER, TIMEOUT, GitFailedError, Repository

PART = 4 << 20
"""Most bytes of a part of a bundle."""

LIMIT = 256 << 20
"""Most bytes of a bundle."""

MOST_BUNDLES = 8
"""Most bundles that build on each other; then one with everything replaces them."""

_ATTEMPTS = 5
"""Attempts to read bundles that their writer replaces meanwhile."""

_LONGEST_LINE = 4096


class _GoneError(Exception):
    """A part of a bundle is gone, because the bundle was replaced after it was listed."""


def is_complete(repository: Repository, commit: str, known: Iterable[str]) -> bool:
    """Return True if a repository has a commit with its whole history and files.

    Commits in `known` are taken to be complete, and are not looked at again.
    """
    if not repository.has(commit):
        return False
    without = [f"^{each}" for each in known]
    with contextlib.suppress(GitFailedError):
        repository.git("rev-list", "--objects", "--quiet", commit, *without)
        return True
    return False


def present(repository: Repository, commits: Iterable[str]) -> set[str]:
    """Return those of `commits` that a repository has, perhaps without their histories."""
    asked = list(commits)
    if not asked:
        return set()
    said = repository.git("cat-file", "--batch-check=%(objecttype)", stdin="".join(f"{each}\n" for each in asked))
    return {commit for commit, kind in zip(asked, said.splitlines(), strict=True) if kind == "commit"}


def write(
    team: TeamDirectory, owner: str, repository: Repository, refs: Sequence[str], known: Iterable[str]
) -> Bundle | None:
    """Put a bundle with the commits of `refs` into the store, except for what the commits `known` have.

    Return the bundle, for the caller to write into the record that lists it; None if the commits `known` have it all.
    `owner` begins the names of the parts, see `sweep`.

    Raises:
        UsageError: The bundle is too large.
        StorageError: A part could not be written.
        GitFailedError: git failed, for example because objects are missing.
    """
    commits = repository.git("rev-parse", *refs).split()
    without = [f"^{commit}" for commit in sorted(present(repository, known))]
    if not repository.git("rev-list", "--max-count=1", *commits, *without):
        return None
    with tempfile.TemporaryDirectory(prefix="crewboard-bundle-") as folder:
        path = Path(folder, "bundle")
        repository.git("bundle", "create", "--quiet", str(path), *refs, *without)
        size = path.stat().st_size
        if size > LIMIT:
            raise UsageError(
                f"the bundle has {size >> 20} MiB, and the store takes {LIMIT >> 20}: let the hosts fetch the history "
                "from a remote, `crewboard workspace push --git URL`"
            )
        ident, parts = f"{owner}.{secrets.token_hex(8)}", 0
        with path.open("rb") as file:
            while part := file.read(PART):
                team.bundles.below(_part(ident, parts)).put(part, durable=True)
                parts += 1
    return Bundle(id=ident, commits=commits, parts=parts, size=size)


def sweep(team: TeamDirectory, owner: str, kept: Iterable[Bundle]) -> None:
    """Remove the parts of all bundles of an owner except for the bundles `kept`.

    Only the single writer of the owner's bundles may call this.

    Raises:
        StorageError: A part could not be removed.
    """
    known = {each.id for each in kept}
    for name in team.bundles.names():
        ident = name.rsplit(".", 2)[0]
        if ident.rpartition(".")[0] == owner and ident not in known:
            team.bundles.below(name).remove()


def bring(
    team: TeamDirectory,
    repository: Repository,
    listed: Callable[[], Sequence[Bundle]],
    has: Callable[[str], bool],
) -> None:
    """Add the objects of listed bundles to a repository, in order, after the last bundle that it has completely.

    `listed` returns the bundles, and is called again if they were replaced meanwhile. `has` returns True for a commit
    that the repository has completely.

    Raises:
        BadDataError: A bundle is damaged, or git refused its objects.
        StorageError: The store failed, or the bundles were replaced again and again.
    """
    for _ in range(_ATTEMPTS):
        bundles = listed()
        here = present(repository, {commit for each in bundles for commit in each.commits})
        known = [all(commit in here and has(commit) for commit in each.commits) for each in bundles]
        begin = len(bundles) - next((place for place, is_known in enumerate(reversed(known)) if is_known), len(bundles))
        try:
            for each in bundles[begin:]:
                with _read(team, each) as file:
                    if not file.readline(_LONGEST_LINE).startswith(b"# v"):
                        raise BadDataError(f"the bundle {each.id} is damaged: it does not begin as one")
                    while (line := file.readline(_LONGEST_LINE)) != b"\n":
                        if not line:
                            raise BadDataError(f"the bundle {each.id} is damaged: it has no objects")
                    head = file.read(PACK_HEADER)
                    if len(head) < PACK_HEADER or head[:4] != b"PACK":
                        raise BadDataError(f"the bundle {each.id} is damaged: it has no objects")
                    # git gets the descriptor, of which more was read here. It checks the objects of a bundle itself
                    # only in its newest versions.
                    os.lseek(file.fileno(), file.tell(), os.SEEK_SET)
                    try:
                        repository.take_in(file.fileno(), head, LIMIT, seconds=TIMEOUT)
                    except GitFailedError as error:
                        raise BadDataError(f"the bundle {each.id} was refused: {error}") from error
        except _GoneError:
            continue
        return
    raise StorageError(f"the bundles in {team.bundles} were replaced again and again while they were read")


@contextmanager
def _read(team: TeamDirectory, bundle: Bundle) -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile() as file:
        for number in range(bundle.parts):
            part = team.bundles.below(_part(bundle.id, number)).get()
            if part is None:
                raise _GoneError
            if file.tell() + len(part) > LIMIT:
                raise BadDataError(f"the bundle {bundle.id} is damaged: it is larger than {LIMIT >> 20} MiB")
            file.write(part)
        file.seek(0)
        yield file


def _part(ident: str, number: int) -> str:
    return f"{ident}.{number}.part"
