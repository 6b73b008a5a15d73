"""Profiles: saved hires for the hire form and for `spawn --profile`. They are files of the user, not of a team.

An option that is given with a hire overrides that of its profile. A profile never has an API key, nor the permission to
run without a sandbox, which must be given again with each hire.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from msgspec import Struct, field

from crewboard import engines, env, redaction
from crewboard.commands.hire import Hire, not_a_model
from crewboard.errors import BadDataError, StorageError, UsageError
from crewboard.names import is_name
from crewboard.pricing import budget_or_none
from crewboard.records.agents import HireOptions, Profile, Spec
from crewboard.store import files
from crewboard.store.layout import record_of


class Profiles(Struct):
    """The profiles by name, and the names of files that cannot be read."""

    profiles: dict[str, Profile] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)


def folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the user's profiles."""
    return env.config_home(environment) / "profiles"


def why_not(name: str, profile: Profile) -> str | None:
    """Return why `profile` cannot be saved as `name`; None if it can."""
    budget = profile.flags.budget
    if not is_name(name):
        return "profile names: a-z first, at most 32 of a-z 0-9 _ -"
    if any(redaction.redact(text) != text for text in (profile.prompt, profile.role, profile.model or "")):
        return "the text contains an API key; remove it first"
    if budget is not None and budget_or_none(budget) is None:
        return f"{budget!r} is not a budget: give money as $5 or tokens as 200k"
    return not_a_model(profile.model or "")


def save(place: Path, name: str, profile: Profile) -> Path:
    """Save a profile in the folder `place`, in place of one of the same name; return its file, which is private.

    Raises:
        UsageError: The name, the budget or the model's name is invalid, or the text contains an API key.
        StorageError: The file could not be written.
    """
    problem = why_not(name, profile)
    if problem is not None:
        raise UsageError(problem)
    path = place / f"{name}.json"
    with files.storage_errors(f"cannot make {place}"):
        files.make_private_folders(place)
    # The user may link the configuration directory to another place.
    path = path.resolve()
    record = record_of(path, Profile)
    record.save(profile)
    return path


def load(place: Path) -> Profiles:
    """Return the profiles in the folder `place`, and the names of the files there that cannot be read."""
    saved = Profiles()
    for path in sorted(place.glob("*.json")):
        try:
            profile = record_of(path.resolve(), Profile).load()
        except (BadDataError, StorageError):
            saved.damaged.append(path.name)
            continue
        if profile is not None and is_name(path.stem):
            saved.profiles[path.stem] = profile
    return saved


def find(place: Path, name: str) -> Profile:
    """Return the profile called `name` in the folder `place`.

    Raises:
        UsageError: There is no such profile; the message lists those that there are.
        BadDataError: Its file is damaged.
    """
    saved = load(place)
    if name in saved.profiles:
        return saved.profiles[name]
    if f"{name}.json" in saved.damaged:
        raise BadDataError(f"the profile {place / name}.json cannot be read; correct it, or save it again")
    known = f"the profiles are {', '.join(saved.profiles)}" if saved.profiles else "`crewboard profiles save` saves one"
    raise UsageError(f"there is no profile {name!r}; {known}")


def remove(place: Path, name: str) -> Path:
    """Remove a profile from the folder `place`, also a damaged one; return the path of its file.

    Raises:
        UsageError: There is no such profile.
        StorageError: The file could not be removed.
    """
    path = place / f"{name}.json"
    if not is_name(name) or not path.is_file():
        find(place, name)
    with files.storage_errors(f"cannot remove {path}"):
        path.unlink()
    return path


def of_agent(spec: Spec) -> Profile:
    """Return a profile of how an agent was hired, without its task and the permission to run without a sandbox."""
    engine = engines.named(spec.engine) if spec.engine is not None else None
    # With an engine, the model is its name.
    model = spec.model or None if engine is None else None
    flags = _kept(spec.flags)
    return Profile(type=spec.type, role=spec.role, prompt=spec.prompt, model=model, engine=engine, flags=flags)


def of_hire(hire: Hire) -> Profile:
    """Return a hire as a profile, without its name, its task and the permission to run without a sandbox."""
    return Profile(
        type=hire.type, role=hire.role, prompt=hire.prompt, model=hire.model, engine=hire.engine,
        flags=_kept(hire.flags),
    )  # fmt: skip


def _kept(flags: HireOptions) -> HireOptions:
    return flags.replace(task=None, unsafe_no_sandbox=False)


def fill(hire: Hire, profile: Profile) -> Hire:
    """Return the hire with what it leaves open filled in from a profile.

    Flags that `hire.given` does not name are those of the profile, except for the task and the permission to run
    without a sandbox; if `given` is None, it counts as empty. In the returned hire, `given` also names the flags in
    which the profile differs from the defaults.
    """
    given = hire.given or frozenset()
    said = {*given, "task", "unsafe_no_sandbox", *({"worktree"} if "base" in given else ())}
    flags = profile.flags.replace(**{name: getattr(hire.flags, name) for name in said})
    usual = HireOptions()
    of_profile = {name for name in usual.__struct_fields__ if getattr(flags, name) != getattr(usual, name)}
    return replace(
        hire,
        type=hire.type or profile.type,
        prompt=hire.prompt if hire.prompt.strip() else profile.prompt,
        role=hire.role or profile.role,
        model=hire.model or profile.model,
        engine=hire.engine or profile.engine,
        flags=flags,
        given=frozenset({*given, *of_profile} - {"task"}),
    )


def describe(profile: Profile) -> str:
    """Return type and options of a profile on one line, such as `code, plan, max-turns 20`."""
    usual, flags = HireOptions(), profile.flags
    options = [
        name.replace("_", "-")
        if value is True
        else f"{name.replace('_', '-')} {' '.join(value) if isinstance(value, list) else value}"
        for name in usual.__struct_fields__
        if (value := getattr(flags, name)) != getattr(usual, name)
    ]
    model = [f"model {profile.model}"] if profile.model else []
    model += [f"engine {profile.engine}"] if profile.engine else []
    return ", ".join([profile.type, *model, *options])
