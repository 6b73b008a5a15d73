"""The abilities of a model, as `GET /v1/models/{id}` says: levels of effort, thinking, images, PDF, the web."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from crewboard import env
from crewboard.records import Effort, Thinking, UsageError

EFFORTS: tuple[str, ...] = get_args(Effort)
"""Levels of effort, the lowest first."""

THINKING: tuple[str, ...] = get_args(Thinking)

ALIASES = {"opus": "claude-opus-5-5", "sonnet": "claude-sonnet-5-5", "haiku": "claude-haiku-5-5"}
"""Short names of models, as in Claude Code."""

ASK_TIMEOUT = 5.0
"""Seconds that a command waits until the API says what a model can do."""

_BASE_URL = "https://api.anthropic.com"
_API_TYPES = {"adaptive": "adaptive", "off": "disabled"}
"""The API's names for the ways to think."""


@dataclass(frozen=True)
class Capabilities:
    """The input that a model takes, as the API says. `thinking` are the API's types of it: `adaptive`, `disabled`."""

    efforts: tuple[str, ...]
    thinking: frozenset[str]
    images: bool = True
    pdf: bool = True
    web: bool = True


def resolve(name: str) -> str:
    """Return the id of a model, which may be named by its short name."""
    return ALIASES.get(name, name)


def read(info: Mapping[str, Any]) -> Capabilities | None:
    """Return the capabilities in the API's description of a model; None if it names none."""
    said = info.get("capabilities")
    if not isinstance(said, Mapping):
        return None
    effort, thinking = _part(said, "effort"), _part(_part(said, "thinking"), "types")
    efforts = tuple(level for level in EFFORTS if _supports(effort) and _supports(_part(effort, level)))
    # A model that says nothing about `disabled` takes it: that is older than the field.
    off = {"disabled"} if "disabled" not in thinking or _supports(_part(thinking, "disabled")) else set()
    adaptive = {"adaptive"} if _supports(_part(thinking, "adaptive")) else set()
    images, pdf = (name not in said or _supports(_part(said, name)) for name in ("image_input", "pdf_input"))
    # A model that says nothing about its tools may take them: the field is younger than they are.
    web = "server_tools" not in said or _supports(_part(_part(said, "server_tools"), "web_search"))
    return Capabilities(efforts, frozenset(off | adaptive), images, pdf, web)


def _part(said: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = said.get(name)
    return part if isinstance(part, Mapping) else {}


def _supports(part: Mapping[str, Any]) -> bool:
    return part.get("supported") is True


def refusal(
    model: str, can: Capabilities | None, effort: str | None = None, thinking: str | None = None, *, web: bool = False
) -> str | None:
    """Return why a model does not take an effort, a way to think or the web; None if it does, or that is unknown."""
    if can is None:
        return None
    if effort is not None and effort not in can.efforts:
        has = f"it has {', '.join(can.efforts)}" if can.efforts else "it has no levels of effort"
        return f"{model} does not take the effort {effort}: {has}"
    if thinking is not None and _API_TYPES[thinking] not in can.thinking:
        takes = [ours for ours, name in _API_TYPES.items() if name in can.thinking]
        return f"{model} does not take the thinking {thinking}: it takes {' and '.join(takes) or 'no such setting'}"
    if web and not can.web:
        return f"{model} has no tools for the web: hire without --web, or choose another model"
    return None


def settings(
    can: Capabilities | None, asked: tuple[Effort | None, Thinking | None], usual: tuple[Effort | None, Thinking | None]
) -> dict[str, Any]:
    """Return the parameters of a request for an effort and a way to think, what was `asked` before what is `usual`.

    What is usual for the type is left out where the model does not take it, or where the API does not say.
    """
    effort, thinking = chosen(can, asked, usual)
    found: dict[str, Any] = {}
    if effort is not None:
        found["output_config"] = {"effort": effort}
    if thinking == "adaptive":
        # Without `display`, some models send an empty text, and the transcript would show nothing.
        found["thinking"] = {"type": "adaptive", "display": "summarized"}
    elif thinking == "off":
        found["thinking"] = {"type": "disabled"}
    return found


def chosen(
    can: Capabilities | None, asked: tuple[Effort | None, Thinking | None], usual: tuple[Effort | None, Thinking | None]
) -> tuple[Effort | None, Thinking | None]:
    """Return the effort and the way to think of a request; None leaves one of them to the model."""
    effort, thinking = asked
    if can is not None:
        effort = effort or (usual[0] if usual[0] in can.efforts else None)
        thinking = thinking or (usual[1] if usual[1] and _API_TYPES[usual[1]] in can.thinking else None)
    return effort, thinking


def require(
    model: str, effort: str | None, thinking: str | None, environment: Mapping[str, str], *, web: bool = False
) -> None:
    """Refuse an effort, a way to think or the web where a model does not take it, if the API says so.

    If the API does not answer or has no such route, nothing is refused here: the API may refuse the call itself.

    Raises:
        UsageError: The model does not take it; the message names what it takes.
    """
    if effort is None and thinking is None and not web:
        return
    if (why := refusal(model, ask(model, environment), effort, thinking, web=web)) is not None:
        raise UsageError(why)


def ask(model: str, environment: Mapping[str, str]) -> Capabilities | None:
    """Return what the API that an environment names says of a model; None if it does not say."""
    if env.is_offline(environment):
        return read(offline(model))
    # Imported here because few commands ask. The SDK would take a second to import.
    import urllib.parse
    import urllib.request

    class NoRedirects(urllib.request.HTTPRedirectHandler):
        """Follows no redirect, because the key would go to another address."""

        def redirect_request(self, *_: object) -> None:
            return None

    base = environment.get("ANTHROPIC_BASE_URL") or _BASE_URL
    url = f"{base.rstrip('/')}/v1/models/{urllib.parse.quote(model, safe='')}"
    headers = {"anthropic-version": "2023-06-01"}
    if key := environment.get("ANTHROPIC_API_KEY"):
        headers["x-api-key"] = key
    if token := environment.get("ANTHROPIC_AUTH_TOKEN"):
        headers["authorization"] = f"Bearer {token}"
    try:
        request = urllib.request.Request(url, headers=headers)  # noqa: S310  the user's own address
        if request.type not in ("http", "https"):
            return None
        with urllib.request.build_opener(NoRedirects).open(request, timeout=ASK_TIMEOUT) as answer:
            info = json.loads(answer.read(1_000_000))
    except (OSError, ValueError, RecursionError):
        return None
    return read(info) if isinstance(info, dict) else None


_OFFLINE_EFFORTS = {"haiku": (), "sonnet": ("low", "medium", "high", "max")}


def offline(model: str) -> dict[str, Any]:
    """Return how the offline model describes itself: like the line of models that its name says."""
    line = next((line for line in _OFFLINE_EFFORTS if line in model), "")
    efforts = _OFFLINE_EFFORTS.get(line, EFFORTS)
    levels = {level: {"supported": level in efforts} for level in EFFORTS}
    types = {
        "adaptive": {"supported": line != "haiku"}, "between_tools": {"supported": False},
        "disabled": {"supported": True}, "enabled": {"supported": line == "haiku"},
    }  # fmt: skip
    unsupported = {"supported": False}
    return {
        "capabilities": {
            "batch": unsupported, "citations": {"supported": True}, "code_execution": unsupported,
            "context_management": unsupported, "effort": {"supported": bool(efforts), **levels},
            "image_input": {"supported": True}, "pdf_input": {"supported": True},
            "server_tools": {"supported": True, "code_execution": unsupported, "web_search": {"supported": True}},
            "structured_outputs": unsupported, "thinking": {"supported": True, "types": types},
        }
    }  # fmt: skip
