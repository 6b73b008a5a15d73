"""Capabilities and sizes of models, as servers and the project state them: effort, thinking, images, PDF, web, window.

The module also reads errors of servers: which say that a request is too long or a model cannot call tools, and what
helps.
"""

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

from msgspec import Struct, convert

from crewboard import endpoint, env
from crewboard.errors import BadDataError, UsageError
from crewboard.records.agents import Effort, Thinking

EFFORTS: tuple[str, ...] = get_args(Effort)
"""Levels of effort, the lowest first."""

THINKING: tuple[str, ...] = get_args(Thinking)

ALIASES = {"opus": "claude-opus-5-5", "sonnet": "claude-sonnet-5-5", "haiku": "claude-haiku-5-5"}
"""Short names of models, as in Claude Code, with their ids."""

_ON_BEDROCK = "anthropic."
"""The prefix of model ids on Amazon Bedrock; the name of a region may stand before it."""

_AFTER_REFUSAL = "claude-opus-4-8"
"""The newest Opus without the classifiers that refuse requests. All models of `ALIASES` have them: page
`refusals-and-fallback` of the API's documents, November 2026.
"""

ASK_TIMEOUT = 5.0
"""Seconds that a command waits for the API's description of a model."""

_OK = 200

_BINDING_BETA = "thinking-binding-controls-2026-08-01"
_PRESERVED_THINKING = (
    "claude-fable-5-1", "claude-fable-5-2", "claude-mythos-5-1", "claude-mythos-5-2", "claude-opus-5-5",
    "claude-sonnet-5-5", "claude-haiku-5-5",
)  # fmt: skip
"""Models that accept their earlier thinking only if all that stood before it is unchanged: page `prefix-checks` of the
API's documents, `supportedModels`, November 2026. Dated ids begin with these names.
"""
_DEFERS_TOOLS = (
    "claude-fable-5", "claude-mythos-5", "claude-opus-5", "claude-opus-4-5", "claude-opus-4-6", "claude-opus-4-7",
    "claude-opus-4-8", "claude-sonnet-5-5", "claude-sonnet-4-5", "claude-sonnet-4-6", "claude-haiku-5-5",
    "claude-haiku-4-5",
)  # fmt: skip
"""Models that load the definitions of tools on demand (`defer_loading`): page `tool-search-tool` of the API's
documents, *Model compatibility*, September 2026. The page names only Opus of the 5.5 models. Sonnet and Haiku are tried
as well: after a refusal, all definitions are sent.
"""
_HEARS_SYSTEM = (
    "claude-fable-5", "claude-mythos-5", "claude-opus-5", "claude-opus-4-8", "claude-sonnet-5-5", "claude-haiku-5-5",
)  # fmt: skip
"""Models that take messages of the role `system` in a conversation: page `mid-conversation-system-messages` of the
API's documents, November 2026. Sonnet 5 does not, nor do Opus 4.7 and older ones."""
FALLBACK_BETA = "server-side-fallback-2026-07-01"
"""The beta header by which the API lets another model answer a request that a model refused."""
_FALLS_BACK = ("claude-fable-5", "claude-opus-5", "claude-sonnet-5-5")
"""Models for which the API has such another model: page `refusals-and-fallback` of the API's documents, November 2026.
Haiku 5.5 refuses as well, but there is no other model for it.
"""
_THINKING_ABOVE_HIGH = ("claude-opus-5", "claude-sonnet-5-5", "claude-haiku-5-5")
"""Models whose thinking cannot be turned off with an effort above `high`, which their description does not say: pages
`whats-new-opus-5`, `whats-new-sonnet-5-5` and `prompting-claude-haiku-5-5` of the API's documents, November 2026.
"""
_ABOVE_HIGH = EFFORTS[EFFORTS.index("high") + 1 :]

_API_TYPES = {"adaptive": ("adaptive",), "off": ("disabled", "between_tools")}
"""The API's types for each way to think. A model takes at most one of the types for `off`."""


@dataclass(frozen=True)
class Capabilities:
    """What a model takes, as the API says. `thinking` has the API's types of thinking that crewboard uses."""

    efforts: tuple[str, ...]
    thinking: frozenset[str]
    images: bool = True
    pdf: bool = True
    web: bool = True
    thinks_above_high: bool = False
    """True if thinking cannot be turned off with an effort above `high`."""
    retired: bool = False
    """True if the API knows the model, but no longer answers for it."""

    def api_type(self, thinking: str) -> str | None:
        """Return the API's type for a way to think, `adaptive` or `off`; None if the model does not take it."""
        return next((each for each in _API_TYPES[thinking] if each in self.thinking), None)

    def takes_pair(self, effort: str | None, thinking: str | None) -> bool:
        """Return True unless the model refuses this effort and this way to think together."""
        return not (self.thinks_above_high and thinking == "off" and effort in _ABOVE_HIGH)


@dataclass(frozen=True)
class Size:
    """The most tokens of a model's window, and of one reply; None where that is not known."""

    window: int | None = None
    reply: int | None = None

    def or_else(self, other: "Size") -> "Size":
        """Return this size, with the numbers of `other` where its own are not known."""
        return Size(self.window or other.window, self.reply or other.reply)


class ProjectModel(Struct, frozen=True, forbid_unknown_fields=True):
    """A model as the project's `.crewboard/models.toml` describes it, because its server does not.

    `window` and `reply` are numbers of tokens, such as 16384 or `16k`. `thinking` is how the model thinks where the
    hire does not say. `price` has the fields of a band of the price table.
    """

    window: int | str | None = None
    reply: int | str | None = None
    images: bool | None = None
    thinking: Thinking | None = None
    price: dict[str, float] | None = None

    @property
    def size(self) -> Size:
        """Return the numbers of tokens of its window and its longest reply.

        Raises:
            UsageError: One of them is not a number of tokens.
        """
        return Size(*(parse_tokens(str(each)) if each is not None else None for each in (self.window, self.reply)))


def project_file(root: Path) -> Path:
    """Return the path of the file in which a project describes its models."""
    return root / ".crewboard" / "models.toml"


def of_project(root: Path) -> dict[str, ProjectModel]:
    """Return the models that the project's `.crewboard/models.toml` describes, by their ids; empty without that file.

    Raises:
        BadDataError: The file is damaged, or a symbolic link.
    """
    path = project_file(root)
    if not path.exists():
        return {}
    if path.is_symlink():
        raise BadDataError(f"{path} is a symbolic link, and crewboard follows none in a team directory")
    import tomllib

    found, where = {}, ""
    try:
        for name, described in tomllib.loads(path.read_text(encoding="utf-8")).items():
            where = f"{name}: "
            found[name] = convert(described, ProjectModel)
            _ = found[name].size
    # Invalid UTF-8, invalid TOML and invalid values are all ValueErrors.
    except (OSError, ValueError, RecursionError, UsageError) as error:
        raise BadDataError(f"{path} cannot be used: {where}{str(error).splitlines()[0]}") from error
    return found


_TOKENS = re.compile(r"(\d{1,300}(?:\.\d+)?)\s*(k|m)?", re.IGNORECASE)


def parse_tokens(text: str) -> int:
    """Parse a number of tokens: `16384`, `16k` or `1m`.

    Raises:
        UsageError: The text has another form, or the number is zero.
    """
    match = _TOKENS.fullmatch(text.strip())
    # As an exponent, because 128.2 * 1_000 is less than 128200.
    count = int(float(match[1] + {"k": "e3", "m": "e6"}.get((match[2] or "").lower(), ""))) if match else 0
    if not count:
        raise UsageError(f"{text!r} is not a number of tokens: give one as 16384 or 16k")
    return count


SMALLEST_USED = 4_000
"""Fewest tokens of a window with which an agent can work. Its instructions and the definitions of its tools
take 3,000.
"""


def parse_window(text: str) -> int:
    """Parse the number of tokens of the window that an agent is hired with.

    Raises:
        UsageError: The text is not a number of tokens, or an agent cannot work with so few.
    """
    count = parse_tokens(text)
    if count < SMALLEST_USED:
        raise UsageError(f"a window of {text.strip()} tokens is too small for an agent: give {SMALLEST_USED} or more")
    return count


_WINDOW_NAMES = (
    "max_input_tokens", "max_model_len", "n_ctx", "loaded_context_length", "context_length", "context_window",
    "max_context_length",
)  # fmt: skip
"""The fields in which servers state a model's window: the API and LiteLLM, vLLM, llama.cpp (below `meta`), LM Studio,
OpenRouter and Ollama, Groq, Mistral. Not `n_ctx_train` of llama.cpp, which is what the model could have. LM Studio
states both the loaded and the largest window.
"""

_REPLY_NAMES = ("max_tokens", "max_output_tokens", "max_completion_tokens")

_MOST_DIGITS = 12
_SMALLEST_WINDOW = 512
"""Fewest tokens of a window; a smaller number is taken for something else."""


def size_in(said: object) -> Size:
    """Return the size that a server's description of one model states; a number that is not stated is None."""
    if not isinstance(said, Mapping):
        return Size()
    parts = [said, _part(said, "meta"), _part(said, "top_provider")]
    window, reply = (
        next((found for part in parts for name in names if (found := _tokens(part.get(name))) is not None), None)
        for names in (_WINDOW_NAMES, _REPLY_NAMES)
    )
    return Size(window if window is not None and window >= _SMALLEST_WINDOW else None, reply)


def _tokens(value: object) -> int | None:
    """Return a number of tokens, which some servers send as a text; None if the value is not such a number."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value[:_MOST_DIGITS])
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return int(value) if 0 < value < 10**9 else None


def find_in_list(said: object, model: str) -> Mapping[str, Any] | None:
    """Return the description of a model in a server's list (`/v1/models`, Ollama's `/api/ps`); None if none fits.

    A list with a single model describes a model of any name, because such a server answers for it under any name.
    """
    lists = [said.get("data"), said.get("models")] if isinstance(said, Mapping) else []
    found = next((each for each in lists if isinstance(each, list)), [])
    entries = [entry for entry in found if isinstance(entry, Mapping)]
    wanted = {model.lower(), f"{model.lower()}:latest"}
    named = [e for e in entries if wanted & {str(e.get(name)).lower() for name in ("id", "name", "model")}]
    return named[0] if named else entries[0] if len(entries) == 1 else None


_TOO_LONG = (
    "prompt is too long", "exceed context limit", "context_length_exceeded", "exceed_context_size", "context length",
    "context size", "contextwindowexceeded", "context window", "too many tokens", "model token limit",
    "maximum number of tokens", "maximum sequence length", "token limit", "limit of tokens",
)  # fmt: skip
"""Words for a request that exceeds the window: of the API, OpenAI and vLLM, llama.cpp, LiteLLM, Bedrock, Kimi and
Gemini, as gateways pass them on. There is no error type for it that all servers use.
"""
_LONGER_THAN = re.compile(
    r"(?:input|sequence|prompt|request|conversation|message|tokens?)\b.{0,60}"
    r"(?:exceed|longer than|too (?:long|many)|no longer fit|at most|more than).{0,60}\d{3}",
    re.IGNORECASE | re.DOTALL,
)
"""Other words for the same: something is longer than a number."""
_SMALLEST_REPLY = 256
"""Fewest tokens of a server's longest reply; a smaller number is taken for part of a name."""
_AT_MOST = re.compile(
    r"at most|maximum|less than|exceed|too large|too high|up to|limit|\brange\b|>|\d tokens or (?:fewer|less)"
    r"|小于|不超过|不能超过|最大",
    re.IGNORECASE,
)
_OF_REPLY = re.compile(r"max_(?:completion_)?tokens|output token|completion token", re.IGNORECASE)
"""Words about the length of the reply, about which servers make the same complaints."""

_WINDOW_IN_TEXT = (
    re.compile(r"> ?(\d[\d,_]{2,})"),
    re.compile(r"(?i:context (?:length|size|window|limit)|token limit|tokens allowed)\D{0,30}?(\d[\d,_]{2,})"),
    re.compile(r"(\d[\d,_]{2,})[ -](?i:tokens? limit)"),
    re.compile(r"(?i:\bmaximum|\blimit|at most)\D{0,20}?(\d[\d,_]{2,})"),
)


_NO_TOOLS = re.compile(
    r"(?:not|n't|cannot)(?: yet)? (?:support|use|call)\b.{0,30}\b(?:tools?\b(?! types?)|tool.calls|functions?.call)"
    r"|\b(?:tools|tool.(?:use|calls|calling)|functions?.calling)\b.{0,30}\b(?:not|n't)(?: yet)? (?:be )?supported"
    r"|no endpoints found that support tool",
    re.IGNORECASE,
)
"""Words for a model that cannot call tools: of Ollama, LiteLLM, Groq and OpenRouter."""
WANTS_TEXT = re.compile(
    r"\A(?!.*(?:\blist\[|\bvalid (?:list|array)|tool_result)).*"
    r"\bcontent\b.{0,80}\b(?:valid|must be|should be|expected|expects|only)\b.{0,30}\bstr(?:ing)?\b",
    re.IGNORECASE | re.DOTALL,
)
"""Words of a server that takes only a string as the content of a message. If its error names a list as well, it takes
lists too.
"""
_SET_UP = (
    (
        re.compile(r"\bwrote a call of \S+ as text"),
        (
            "let its server read calls: vLLM with `--enable-auto-tool-choice --tool-call-parser PARSER`, llama-server "
            "with `--jinja`, others with a template that has tools; or use another model, with `--model`"
        ),
    ),
    (
        re.compile(r"--enable-auto-tool-choice|--tool-call-parser"),
        "start vLLM with `--enable-auto-tool-choice --tool-call-parser PARSER`; its documents name that of a model",
    ),
    (
        re.compile(r"serves a web page, no API|redirects the request in a circle"),
        "set ANTHROPIC_BASE_URL to the address of its API, and resume agents in that shell",
    ),
    (
        re.compile(r"\bno connection to the offline model\b"),
        "it is started again; if that does not help, `crewboard stop NAME`, then `crewboard resume NAME`",
    ),
    (
        re.compile(r"\bno connection to (?!\S*(?:anthropic\.com|api\.aws|googleapis\.com|azure\.com):)"),
        "if the address is wrong, stop the agent, correct ANTHROPIC_BASE_URL, and resume it in that shell",
    ),
    (re.compile(r"requires? --jinja"), "start llama-server with `--jinja`"),
    (
        re.compile("CERTIFICATE_VERIFY_FAILED"),
        "`export SSL_CERT_FILE=FILE` with the server's own certificate, or that of its authority",
    ),
    (
        re.compile(r"\bno models? (?:is |are )?loaded|\bmodel (?:is |was |has )?(?:been )?unloaded", re.IGNORECASE),
        "load the model on its server (LM Studio: `lms load`), then try again",
    ),
    (
        re.compile(r"and takes one of \d+ tokens or more"),
        (
            "give the model a larger window (Ollama `OLLAMA_CONTEXT_LENGTH` or `num_ctx`, llama-server `-c`, vLLM "
            "`--max-model-len`), then stop and resume the agent, with `--window` if the server does not say it"
        ),
    ),
    (
        WANTS_TEXT,
        "the server takes only text in messages, and agents need calls and their results: use another server",
    ),
    (_NO_TOOLS, "agents work by calling tools: use a model that can, with `--model`"),
)
"""Words of errors that the same request meets each time, and what the user can do about each."""


def lacks_tools(text: str) -> bool:
    """Return True if a server's error says that a model cannot call tools."""
    return _NO_TOOLS.search(text) is not None


def remedy(text: str) -> str | None:
    """Return what the user can do about a server's error, on the server or with another model; None if unknown."""
    return next((helps for words, helps in _SET_UP if words.search(text)), None)


def with_remedy(text: str) -> str:
    """Return the text of an error and, if it is known, what the user can do about it."""
    helps = remedy(text)
    return text if helps is None or helps in text else f"{text.rstrip('.')}; {helps}"


def is_too_long(text: str) -> bool:
    """Return True if a server's error says that a request exceeds the window."""
    if any(said in text.lower() for said in _TOO_LONG):
        return True
    return _LONGER_THAN.search(text) is not None and _OF_REPLY.search(text) is None


def window_in_text(text: str) -> int | None:
    """Return the window, in tokens, that an error about a request that is too long names; None if it names none."""
    for pattern in _WINDOW_IN_TEXT:
        if (match := pattern.search(text)) is not None:
            found = int(re.sub(r"\D", "", match[1]))
            return found if found >= _SMALLEST_WINDOW else None
    return None


def reply_in_text(text: str, asked: int) -> int | None:
    """Return the longest reply, in tokens, that a refusal of a reply of `asked` tokens names; None if there is none."""
    if _OF_REPLY.search(text) is None or _AT_MOST.search(text) is None or is_too_long(text):
        return None
    numbers = (int(found.replace(",", "")) for found in re.findall(r"\d{1,3}(?:,\d{3})+|\d+", text))
    return max((each for each in numbers if _SMALLEST_REPLY <= each < asked), default=None)


def resolve(name: str, environment: Mapping[str, str]) -> str:
    """Return the id of a model on the server of an environment. `name` is an id or a short name."""
    found = env.model_of_line(name, environment) or ALIASES[name] if name in ALIASES else name
    lacks = env.platform(environment) == "bedrock" and is_of_anthropic(found) and plain(found) == found
    return f"{_ON_BEDROCK}{found}" if lacks else found


def plain(model: str) -> str:
    """Return the id of a model as Anthropic's own API names it, without the prefix that Amazon Bedrock uses."""
    return model.rpartition(_ON_BEDROCK)[2]


def usual(model: str, environment: Mapping[str, str]) -> str:
    """Return the id that the server of an environment has for the model of a type.

    A model with a short name can be replaced by a variable of the environment (`env.model_of_line`).
    """
    line = next((line for line, newest in ALIASES.items() if newest == model), model)
    return resolve(line, environment)


def is_of_anthropic(model: str) -> bool:
    """Return True for the id of a model of Anthropic, on any server."""
    return plain(model).startswith("claude-")


def instead_of(model: str, environment: Mapping[str, str]) -> str | None:
    """Return the model to try after `model` refused; None if none is known, as on servers other than Anthropic's."""
    if not env.is_offline(environment) and not endpoint.is_anthropic(endpoint.base_url(environment)):
        return None
    return _AFTER_REFUSAL if known(model) is not None and model != _AFTER_REFUSAL else None


def of_setting(setting: str | None, agent_type: str) -> str | None:
    """Return the model that a team's setting names for an agent type, else for all types; None if it names none.

    The setting is a text such as `qwen3 explore=qwen3:8b`.
    """
    words = [word.rpartition("=") for word in (setting or "").split()]
    return next((model for kind, _, model in sorted(words, reverse=True) if kind in (agent_type, "")), None)


def in_setting(setting: str | None) -> list[str]:
    """Return all models that a team's setting names (`of_setting`)."""
    return [word.rpartition("=")[2] for word in (setting or "").split()]


def read(info: Mapping[str, Any]) -> Capabilities | None:
    """Return the capabilities in the API's description of a model; None if it states none.

    The API still describes a model that it has retired; of such a model, only `retired` is set.
    """
    said = info.get("capabilities")
    if info.get("lifecycle") == "retired":
        return Capabilities((), frozenset(), retired=True)
    if not isinstance(said, Mapping):
        return None
    effort, thinking = _part(said, "effort"), _part(_part(said, "thinking"), "types")
    efforts = tuple(level for level in EFFORTS if _supports(effort) and _supports(_part(effort, level)))
    types = {each for known in _API_TYPES.values() for each in known if _supports(_part(thinking, each))}
    # A model that says nothing about `disabled` takes it: that is older than the field.
    types |= {"disabled"} if "disabled" not in thinking else set()
    images, pdf = (name not in said or _supports(_part(said, name)) for name in ("image_input", "pdf_input"))
    # A model that says nothing about its tools may take them: the field is younger than they are.
    web = "server_tools" not in said or _supports(_part(_part(said, "server_tools"), "web_search"))
    thinks = str(info.get("id")).startswith(_THINKING_ABOVE_HIGH)
    return Capabilities(efforts, frozenset(types), images, pdf, web, thinks)


def _part(said: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = said.get(name)
    return part if isinstance(part, Mapping) else {}


def _supports(part: Mapping[str, Any]) -> bool:
    return part.get("supported") is True


def refusal(
    model: str, can: Capabilities | None, effort: str | None = None, thinking: str | None = None, *, web: bool = False
) -> str | None:
    """Return why a model does not take an effort, a way to think or the web; None if it does, or that is not known.

    `can` are the capabilities of the model, None if they are not known. A retired model takes nothing.
    """
    if can is None:
        return None
    if can.retired:
        return f"the model {model} is retired: choose a newer model"
    if effort is not None and effort not in can.efforts:
        has = f"it has {', '.join(can.efforts)}" if can.efforts else "it has no levels of effort"
        return f"{model} does not take the effort {effort}: {has}"
    if thinking is not None and can.api_type(thinking) is None:
        takes = [way for way in THINKING if can.api_type(way) is not None]
        return f"{model} does not take the thinking {thinking}: it takes {' and '.join(takes) or 'no such setting'}"
    if not can.takes_pair(effort, thinking):
        return f"{model} does not take the effort {effort} with the thinking off: only low, medium and high"
    if web and not can.web:
        return f"{model} has no tools for the web: hire without --web, or choose another model"
    return None


def settings(can: Capabilities | None, effort: Effort | None, thinking: Thinking | None) -> dict[str, Any]:
    """Return the parameters of a request for an effort and a way to think, which `chosen` returned."""
    found: dict[str, Any] = {}
    if effort is not None:
        found["output_config"] = {"effort": effort}
    if thinking == "adaptive":
        # Without `display`, some models send an empty text, and the transcript would show nothing.
        found["thinking"] = {"type": "adaptive", "display": "summarized"}
    elif thinking == "off":
        found["thinking"] = {"type": can.api_type("off") if can is not None else "disabled"}
    return found


def preserves_thinking(model: str) -> bool:
    """Return True for a model that accepts its thinking only behind the same system prompt, tools and messages."""
    return plain(model).startswith(_PRESERVED_THINKING)


def hears_system(model: str) -> bool:
    """Return True for a model that takes messages of the role `system` in a conversation."""
    return model.startswith(_HEARS_SYSTEM)


def defers_tools(model: str) -> bool:
    """Return True for a model that loads the definitions of tools on demand, when it asks for them."""
    return model.startswith(_DEFERS_TOOLS)


def with_binding(settings: dict[str, Any], model: str, headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with which the API drops thinking that it does not accept, in place of refusing the request.

    The settings are returned unchanged for a model that takes its thinking anywhere, or without adaptive thinking. Only
    for Anthropic's API: other servers may refuse an unknown field or beta header. `headers` are those of the client,
    which may name other betas. Conversations only grow, so this is a second line of defence.
    """
    if not preserves_thinking(model) or settings.get("thinking", {}).get("type") != "adaptive":
        return settings
    thinking = {**settings["thinking"], "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    return _with_beta({**settings, "thinking": thinking}, _BINDING_BETA, headers)


def falls_back(model: str) -> bool:
    """Return True for a model for which the API asks another model if it refuses."""
    return model.startswith(_FALLS_BACK)


def with_fallbacks(settings: dict[str, Any], model: str, headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with which the API asks another model if `model` refuses; unchanged if the API has none.

    Only for Anthropic's API: other servers may refuse an unknown field or beta header. `headers` are those of the
    client, which may name other betas.
    """
    if not falls_back(model):
        return settings
    return _with_beta({**settings, "extra_body": {"fallbacks": "default"}}, FALLBACK_BETA, headers)


def _with_beta(settings: dict[str, Any], beta: str, headers: Mapping[str, Any]) -> dict[str, Any]:
    name = "anthropic-beta"
    betas = settings.get("extra_headers", {}).get(name) or headers.get(name)
    return {**settings, "extra_headers": {name: f"{betas},{beta}" if betas else beta}}


def chosen(
    can: Capabilities | None, asked: tuple[Effort | None, Thinking | None], usual: tuple[Effort | None, Thinking | None]
) -> tuple[Effort | None, Thinking | None]:
    """Return the effort and the way to think of a request: those that were `asked`, else those `usual` for the type.

    None leaves the effort or the thinking to the model. What is usual is left out where the model does not take it, or
    where the API does not say. Without a usual way to think, adaptive thinking is asked for where the model takes it:
    such a model thinks adaptively anyway, but shows its thinking only if asked.
    """
    effort, thinking = asked
    if can is not None:
        effort = effort or (usual[0] if usual[0] in can.efforts else None)
        ways: tuple[Thinking | None, ...] = (usual[1], "adaptive")
        thinking = thinking or next((way for way in ways if way and can.api_type(way) is not None), None)
        if not can.takes_pair(effort, thinking):
            # What was asked stays.
            effort, thinking = (asked[0], None) if asked[0] is not None else (None, thinking)
    return effort, thinking


def require(
    model: str, effort: str | None, thinking: str | None, environment: Mapping[str, str], *, web: bool = False
) -> None:
    """Refuse a model that does not exist, and an effort, a way to think or the web that it does not take.

    Only Anthropic's own API is asked whether a model exists; other servers may lack the route. If the API does not
    answer, nothing is refused here; the call itself may be.

    Raises:
        UsageError: There is no such model, or no longer, or it does not take what is asked; the message names what
            there is.
    """
    paid = not env.is_offline(environment) and endpoint.is_anthropic(endpoint.base_url(environment))
    if effort is None and thinking is None and not web and not paid:
        return
    can = ask(model, environment)
    known: list[str] = []
    if can is None and paid:
        with contextlib.suppress(endpoint.RedirectedError):
            known = without(model, environment)
    if known:
        raise UsageError(f"there is no model {model}, or no longer; the API knows {', '.join(known)}")
    if (why := refusal(model, can, effort, thinking, web=web)) is not None:
        raise UsageError(why)


def without(model: str, environment: Mapping[str, str]) -> list[str]:
    """Return the models that a server lists if `model` is not among them; empty if it is, or if that is not known.

    Raises:
        RedirectedError: The server redirects the request.
    """
    try:
        status, said = endpoint.get(environment, "/v1/models?limit=1000", ASK_TIMEOUT)
    except endpoint.RedirectedError:
        raise
    except (OSError, ValueError):
        return []
    names = listed(said) if status == _OK else []
    # It may be listed with a date or a tag.
    return [] if any(each.startswith(model) for each in names) else names


def listed(said: object) -> list[str]:
    """Return the ids of models in a server's answer to `GET /v1/models`, also if it is in the form of another API."""
    rows = said.get("data", said.get("models")) if isinstance(said, Mapping) else said
    ids = [row.get("id", row.get("name")) for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    return [each for each in ids if isinstance(each, str)]


def ask(model: str, environment: Mapping[str, str]) -> Capabilities | None:
    """Ask the API that an environment names for the capabilities of a model; None if it does not answer or state them.

    Neither the offline model nor a cloud platform is asked: their capabilities are known here.
    """
    if env.is_offline(environment):
        return read(offline(model))
    if env.platform(environment) is not None:
        return on_platform(model)
    try:
        status, info = endpoint.get(environment, f"/v1/models/{quote(model, safe='')}", ASK_TIMEOUT)
    except (OSError, ValueError):
        return None
    return read(info) if status == _OK and isinstance(info, dict) else None


_KNOWN: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "claude-fable-5": (("adaptive",), EFFORTS),
    "claude-mythos-5": (("adaptive",), EFFORTS),
    "claude-opus-5-5": (("adaptive",), EFFORTS),
    "claude-opus-5": (("adaptive", "disabled"), EFFORTS),
    "claude-sonnet-5-5": (("adaptive", "between_tools"), EFFORTS),
    "claude-sonnet-5": (("adaptive", "disabled"), EFFORTS),
    "claude-haiku-5-5": (("adaptive", "disabled"), EFFORTS),
    "claude-opus-4-6": (("adaptive", "disabled", "enabled"), ("low", "medium", "high", "max")),
    "claude-sonnet-4-6": (("adaptive", "disabled", "enabled"), ("low", "medium", "high", "max")),
    "claude-haiku-4-5": (("disabled", "enabled"), ()),
}
"""The types of thinking and the efforts of models, by the beginning of their ids, the longer ones first. Sources: pages
`whats-new-…` of each model, `prompting-claude-haiku-5-5`, `adaptive-thinking` and `effort` of the API's documents,
November 2026.
"""

_CONTEXT_EDITS = ("clear_thinking_20251015", "clear_tool_uses_20250919", "compact_20260112")


def known(model: str) -> Capabilities | None:
    """Return the capabilities that the API's documents state for a model; None if the model is not in them.

    Use these only while the API's own description of the model is not known.
    """
    return read(offline(plain(model))) if plain(model).startswith(tuple(_KNOWN)) else None


def on_platform(model: str) -> Capabilities | None:
    """Return the capabilities of a model on a cloud platform, which describes no models and lacks the API's web tools.

    None if the API's documents do not describe the model.
    """
    can = known(model)
    return replace(can, web=False) if can is not None else None


def offline(model: str) -> dict[str, Any]:
    """Return the API's description of the model that the offline model stands in for, as of `GET /v1/models/ID`.

    A name that is not known is described like Opus 5.
    """
    line = next((line for line in _KNOWN if model.startswith(line)), "claude-opus-5")
    taken, efforts = _KNOWN[line]
    levels = {level: {"supported": level in efforts} for level in EFFORTS}
    types = {each: {"supported": each in taken} for each in ("adaptive", "between_tools", "disabled", "enabled")}
    unsupported = {"supported": False}
    context_management = {**unsupported, **dict.fromkeys(_CONTEXT_EDITS)}
    return {
        "id": model,
        "capabilities": {
            "batch": unsupported, "citations": {"supported": True}, "code_execution": unsupported,
            "context_management": context_management, "effort": {"supported": bool(efforts), **levels},
            "image_input": {"supported": True}, "pdf_input": {"supported": True},
            "server_tools": {"supported": True, "code_execution": unsupported, "web_search": {"supported": True}},
            "structured_outputs": unsupported, "thinking": {"supported": True, "types": types},
        },
    }  # fmt: skip
