"""The key for the Messages API: whether the environment has one that can be sent."""

import re
from collections.abc import Mapping

from crewboard.errors import CredentialsError

_KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
_SENDABLE = re.compile(r"[!-~]+")
"""What an HTTP header carries as it stands."""


def has_key(environment: Mapping[str, str]) -> bool:
    """Whether there is a key for the Messages API, whatever it is worth."""
    return bool(_keys_in(environment))


def _keys_in(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: environment[name] for name in _KEYS if environment.get(name)}


def check_credentials(environment: Mapping[str, str]) -> None:
    """Make sure that a worker with this environment could reach a model.

    Raises:
        CredentialsError: There is no key, or none that can be sent; says how to get one.
    """
    if environment.get("CREWBOARD_OFFLINE") == "1":
        return
    keys = _keys_in(environment)
    if not keys:
        raise CredentialsError(
            "no API key: set ANTHROPIC_API_KEY (keys are made in the Anthropic Console), "
            "or try the embedded model with --offline"
        )
    for name, key in keys.items():
        if not _SENDABLE.fullmatch(key):
            raise CredentialsError(f"{name} holds what no key does, such as a space or a line break; set it again")
