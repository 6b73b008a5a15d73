"""Profiles: hirings that a person keeps under a name, one file each in the user's own configuration."""

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
    """What is kept: the profiles by name, and the files that are damaged."""

    profiles: dict[str, Profile] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)


def folder(environment: Mapping[str, str]) -> Path:
    """Where profiles are kept: below `$XDG_CONFIG_HOME`, else below `~/.config`."""
    return config_home(environment) / "profiles"


def why_not(name: str, profile: Profile) -> str | None:
    """Why `profile` cannot be kept as `name`; None if it can."""
    if not is_name(name):
        return "a profile's name starts with a-z and has at most 32 of a-z 0-9 _ -"
    if any(redact(text) != text for text in (profile.prompt, profile.role, profile.model or "")):
        return "there is a key in what you wrote; a profile holds none: take it out first"
    return None


def save(place: Path, name: str, profile: Profile) -> Path:
    """Keep a profile in one step, for the user's eyes alone; one of that name is replaced.

    Raises:
        UsageError: The name cannot be, or the text holds a key.
        StorageError: The disk refused.
    """
    problem = why_not(name, profile)
    if problem is not None:
        raise UsageError(problem)
    path = place / f"{name}.json"
    try:
        make_private(place)
    except OSError as error:
        raise StorageError(f"cannot make {place}: {error.strerror}") from error
    # Profiles are the user's own settings, which may lie elsewhere behind a link.
    path = path.resolve()
    json_files.quarantine_if_damaged(path, Profile)
    json_files.save(path, profile)
    return path


def load_all(place: Path) -> Profiles:
    """Every profile that can be read; the names of the files that cannot."""
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
