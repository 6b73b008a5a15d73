"""Profiles: saved hire forms, one file each in the user's configuration directory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from crewboard.errors import BadDataError, StorageError, UsageError
from crewboard.names import is_name
from crewboard.records import Profile
from crewboard.redaction import redact
from crewboard.store import json_files
from crewboard_tui.user_dirs import config_home, make_private


@dataclass
class Profiles:
    """The profiles by name, and the damaged files."""

    profiles: dict[str, Profile] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)


def folder(environment: Mapping[str, str]) -> Path:
    """Return the directory of the profiles."""
    return config_home(environment) / "profiles"


def why_not(name: str, profile: Profile) -> str | None:
    """Return why `profile` cannot be saved as `name`; None if it can."""
    if not is_name(name):
        return "profile names: a-z first, at most 32 of a-z 0-9 _ -"
    if any(redact(text) != text for text in (profile.prompt, profile.role, profile.model or "")):
        return "the text contains an API key; remove it first"
    return None


def save(place: Path, name: str, profile: Profile) -> Path:
    """Save a profile atomically and privately; replace one of the same name.

    Raises:
        UsageError: The name is invalid, or the text contains an API key.
        StorageError: The file could not be written.
    """
    problem = why_not(name, profile)
    if problem is not None:
        raise UsageError(problem)
    path = place / f"{name}.json"
    try:
        make_private(place)
    except OSError as error:
        raise StorageError(f"cannot make {place}: {error.strerror}") from error
    # The user may link the configuration directory to another place.
    path = path.resolve()
    json_files.quarantine_if_damaged(path, Profile)
    json_files.save(path, profile)
    return path


def load_all(place: Path) -> Profiles:
    """Load all profiles; report the files that cannot be read."""
    shelf = Profiles()
    for path in sorted(place.glob("*.json")):
        try:
            profile = json_files.load(path.resolve(), Profile)
        except (BadDataError, StorageError):
            shelf.damaged.append(path.name)
            continue
        if profile is not None and is_name(path.stem):
            shelf.profiles[path.stem] = profile
    return shelf
