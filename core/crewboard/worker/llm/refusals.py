"""Failed calls of the model: what happened, whether to try again, and after which wait.

`judge` turns the error of one attempt into a `Refusal`, which decides if `Model.reply` in `model.py` tries again.
`ModelError` and its kinds are what the caller gets if it does not.
"""

import contextlib
import math
import os
import re
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from email.utils import parsedate_to_datetime

import anthropic
import httpx2
from anthropic import WorkloadIdentityError

from crewboard import endpoint, models
from crewboard.errors import ExitCode
from crewboard.redaction import redact
from crewboard.worker.llm.blocks import PageError, ServerError

_LONGEST_SPEND_LIMIT = 32 * 86_400.0
"""The longest time in seconds until a limit of spending is reset, because such a limit is for a month."""
_LONGEST_RESET = 7 * 86_400.0
"""The longest time in seconds until another limit of the API is reset; a header that names more is wrong."""
_OK = 200
_NO_PAYMENT = 402
_OF_ACCOUNT = re.compile(
    "credit balance is too low|billing_error|API usage limits|spend(?:ing)? limit"
    "|insufficient_quota|exceeded your current quota|budget has been exceeded|budget_exceeded",
    re.IGNORECASE,
)
"""Words for an account without credit or at a limit of spending, as the API, OpenAI behind a gateway, and LiteLLM for a
key send them. The API sends both cases as `invalid_request_error`, or as `billing_error` with the status 402."""
_MODERATED = re.compile(r"\bflagged\b|\bmoderation\b", re.IGNORECASE)
"""Words of a 403 that is about the input and not about the credentials, as OpenRouter sends it."""
_REGAIN = re.compile(r"regain access on (\d{4}-\d\d-\d\d) at (\d\d:\d\d) UTC")
FORBIDDEN = 403
_TOO_LARGE = 413
FAILED = 500
_NO_ROOM = 507
MAY_BE_TOO_LONG = frozenset({400, _TOO_LARGE, 422, FAILED, _NO_ROOM})
"""Statuses that a request which exceeds the window may get; some gateways turn a server's 400 into a 500."""
MAY_BE_MEDIA = frozenset({400, 404, 415, 422})
"""Statuses that a request may get for an image that the model does not take; llama.cpp and gateways also send 500."""
_NO_SUCH_PATH = frozenset({404, 405})
_MAY_BE_UNKNOWN = frozenset({400, 404})
_UNKNOWN_MODEL = re.compile(
    r"^model: |invalid model name|model_not_found|\bmodel\b.*(?:not found|does not exist)", re.IGNORECASE
)
"""Words for a model that a server does not have, of the API, LiteLLM, OpenAI, Ollama and vLLM, in this order."""
_STALE_THINKING = re.compile(
    "Invalid `signature` in `thinking` block|blocks in the latest assistant message cannot be modified"
)
"""The API's words for thinking that it refuses: of another conversation, account or model, or changed since."""
_OF_FORM = re.compile(
    r"\b(?:messages|tools|system|content)[.\[]\d|\b(?:tool_\w+|input_schema|is_error|output_config|max_tokens)\b"
    r"|\bextra (?:inputs?|fields?|keys?)\b|\binput should be\b|\bonly supports?\b"
    r"|\bnot (?:supported|permitted|allowed|implemented)\b"
    r"|\b(?:unsupported|invalid|malformed|unrecogni[sz]ed)\b|\b(?:does not|doesn't) support\b|\bmust (?:be|have|not)\b"
    r"|\b(?:unknown|unexpected) (?:field|key|parameter|argument|property|role)\b|\bis required\b",
    re.IGNORECASE,
)
"""Words of a refusal because of a field or a kind of content in the request, and not because of its length."""
_DEFERRED_TOOLS = re.compile(r"defer_loading|tool_reference|Tool reference")
"""Words of a refusal for the fields by which tools are loaded on demand."""
_SHARED = frozenset({429, 529})
UNAVAILABLE = frozenset({*_SHARED, 502, 503, 504, *range(520, 528)})
"""Statuses of an outage. Those from 520 on are sent by a proxy that cannot reach the server behind it."""
_RETRIED_STATUS = frozenset({408, 409, 500, *UNAVAILABLE})
_NAMES_MEDIA = re.compile(r"\b(image|image_url|pdf|vision|multimodal|mmproj|document\.source)\b", re.IGNORECASE)
"""Words by which a refusal of a request with images or documents names them as its reason."""
_RATE_LIMITED = 429
_LIMIT_AND_REQUESTED = re.compile(r"\bLimit:? (\d[\d,]*), Requested:? (\d[\d,]*)", re.IGNORECASE)
"""Words of a rate limit that name the tokens of the limit and of the refused request."""
_RESET = re.compile(r"(anthropic-ratelimit-.+)-reset")
"""Names of the headers that say when a limit of the API is reset."""
_STATUS = {
    "invalid_request_error": 400, "authentication_error": 401, "billing_error": 402, "permission_error": 403,
    "not_found_error": 404, "request_too_large": 413, "rate_limit_error": 429, "api_error": 500, "timeout_error": 504,
    "overloaded_error": 529,
}  # fmt: skip
"""The HTTP status of each type of error. It is looked up for an error in a stream, where the status is the stream's."""
_CREDENTIAL_LIBRARIES = frozenset({"boto3", "botocore", "google", "requests", "urllib3"})
_NO_NETWORK = frozenset({"TransportError", "HTTPClientError", "ConnectionError"})
"""Names of errors of the network in Google's and Amazon's libraries, which are not imported here."""
_NO_CAUSE = re.compile(r"(an? )?(internal|unexpected|unknown|api|server)?[ _]*(server)?[ _]*error( occurred)?\W*")
"""Error texts that name no cause, so that the next attempt may succeed."""
_MOST_SAID = 2000
"""Characters of an error's text that are kept: some servers send a whole page."""
_MOST_CAUSE = 200
"""Characters of a cause that are kept for comparison: a place in the server's code, or the request, may follow."""
_MOST_NESTED = 8
"""Levels of nesting down to which a message is looked for in an error."""
_PAGE = "a web page"


class ModelError(Exception):
    """A call of the model failed, and the same request is not tried again. `code` is the exit code for the reason."""

    def __init__(self, text: str, code: ExitCode) -> None:
        super().__init__(models.with_remedy(text))
        self.code = code


class TooLongError(ModelError):
    """The request is too long: it has more tokens than the model's window holds, or too many bytes."""

    window: int | None = None
    """The size of the window in tokens, as the server says; None if it does not."""
    is_large: bool = False
    """True if the request has too many bytes, and not too many tokens."""


class MaybeTooLongError(ModelError):
    """A third-party server refused the longest request so far in unknown words, so it may be too long."""

    was_repeated = False
    """True if the server refused the same request several times in the same way."""


class UnknownModelError(ModelError):
    """The server does not have the model, or the model calls no tools: each further call would fail as well."""


class MediaRefusedError(ModelError):
    """The server refuses an image or a document in the request, or may do so."""


class DeferredToolsError(ModelError):
    """The server does not load the definitions of tools on demand."""


class StaleThinkingError(ModelError):
    """The API refuses thinking in the request: it was changed, or is of another conversation, account or model."""


@dataclass(frozen=True)
class Refusal:
    """One failed attempt to call the model.

    `text` says what happened. If `retry`, it may be tried again after at least `wait` seconds. `code` is the exit code
    for the reason, if the call fails in the end.
    """

    text: str
    retry: bool
    code: ExitCode = ExitCode.API_UNAVAILABLE
    wait: float = 0
    waited: float = 0
    """Seconds after which the attempt was given up because no answer, or no whole one, came; else 0."""
    shared: bool = False
    """True if the whole team should pause its calls, because the limit is shared."""
    unavailable: bool = False
    """True if calls of other agents would fail as well, so that an outage is shared by the whole team."""
    cause: str = ""
    """The cause of a failure, without its numbers, to compare it with the next one; empty if the server named none."""
    of_account: bool = False
    """True if the account may not call the API now: it has no credit, or has reached a limit of spending."""
    may_be_outage: bool = True
    """False if the server answered with something that is no usable reply: each further attempt may be billed."""
    kind: type[ModelError] = ModelError
    """The class of the error to raise if there is no retry."""
    window: int | None = None
    """The size of the model's window in tokens, as the refusal of a long request names it; else None."""
    is_large: bool = False
    """True if the request had too many bytes."""
    names_media: bool = False
    """True if the server gave an image or a document as the reason."""
    is_of_form: bool = False
    """True if the server gave a field or a kind of content as the reason, and so not the length."""
    status: int | None = None
    """The HTTP status of the answer; None if there was none, or for an error within a stream that may be retried."""
    is_page: bool = False
    """True if the answer was a web page."""
    size: int = 0
    """Bytes of the request, if it was answered with an HTTP error; else 0."""
    closed_on: int | None = None
    """Bytes of the request, if the server closed the connection on it without an answer; else None."""

    def __post_init__(self) -> None:
        # What an API or a gateway says may repeat the key. It is journalled, mailed and shown.
        object.__setattr__(self, "text", redact(self.text))

    def error(self) -> ModelError:
        """Return the error to raise if there is no retry."""
        error = self.kind(self.text, self.code)
        if isinstance(error, TooLongError):
            error.window, error.is_large = self.window, self.is_large
        return error


def judge(error: Exception) -> Refusal:  # noqa: PLR0911  one for each kind of error
    """Return the refusal for the error of a failed call."""
    match error:
        case PageError():
            text = f"the address serves {_PAGE}, no API"
            # An address that cannot be used, unless the server has answered before.
            code = ExitCode.CREDENTIALS
            return Refusal(text, retry=True, code=code, may_be_outage=False, cause=text, status=_OK, is_page=True)
        case ServerError():
            return _judge_status(_OK, error.body)
        case anthropic.APIStatusError():
            found = _judge_status(error.status_code, error.body, _retry_after(error), error.message)
            if error.response.history:
                # A redirect makes a GET of a POST, unless it is a 307 or 308.
                url = str(error.response.url.copy_with(query=None))
                base = url.removesuffix("/v1/messages")
                remedy = f": set {endpoint.BASE_URL} to {base}" if base != url else ""
                found = replace(found, text=f"{found.text}; redirected to {url}{remedy}")
            is_page = error.response.headers.get("content-type", "").startswith("text/html")
            return replace(found, status=error.status_code, is_page=is_page, size=bytes_of(error.request))
        case anthropic.APIConnectionError():
            return _judge_connection(error)
        case UnicodeEncodeError():
            # Of the request: every attempt would fail.
            return Refusal(f"the request cannot be encoded: {error}", retry=False, code=ExitCode.FAILED)
        case httpx2.DecodingError() | ValueError():
            text = f"the reply was malformed: {str(error)[:200]}"
            return Refusal(text, retry=True, may_be_outage=False, cause=_without_numbers(text))
        case httpx2.HTTPError():
            return Refusal(f"the reply was cut off ({type(error).__name__})", retry=True)
        # The server that hands out access tokens did not answer, or may answer another time.
        case WorkloadIdentityError() if (
            isinstance(error.__cause__, httpx2.HTTPError) or error.status_code in _RETRIED_STATUS
        ):
            return Refusal(f"no access token: {error}", retry=True, unavailable=True)
        case _:
            return Refusal(str(error), retry=False, code=ExitCode.CREDENTIALS)


def is_of_credentials(error: Exception) -> bool:
    """Return True if an error comes from looking up credentials of a cloud platform, by the SDK, Amazon or Google."""
    library = type(error).__module__.partition(".")[0]
    return type(error) is RuntimeError or isinstance(error, ImportError) or library in _CREDENTIAL_LIBRARIES


def judge_credentials(error: Exception) -> Refusal:
    """Return the refusal for an error of which `is_of_credentials` is True.

    It is retried only if the network failed.
    """
    text = f"no credentials: {error}"
    if {each.__name__ for each in type(error).__mro__} & _NO_NETWORK:
        return Refusal(text, retry=True, unavailable=True)
    return Refusal(text, retry=False, code=ExitCode.CREDENTIALS)


def _judge_connection(error: anthropic.APIConnectionError) -> Refusal:
    """Return the refusal for a failed connection. It is retried unless key, URL or redirects are the reason."""
    if isinstance(error.__cause__, httpx2.LocalProtocolError):
        # The error's own text holds the header, and so the key.
        text = "the API key cannot be sent: it contains a character that is not allowed in a header"
        return Refusal(text, retry=False, code=ExitCode.CREDENTIALS)
    if isinstance(error.__cause__, httpx2.UnsupportedProtocol):
        return Refusal("the base URL starts with neither http:// nor https://", retry=False, code=ExitCode.CREDENTIALS)
    if isinstance(error.__cause__, httpx2.TooManyRedirects):
        return Refusal("the server redirects the request in a circle", retry=False, code=ExitCode.CREDENTIALS)
    # After a redirect the request is another one.
    cause = error.__cause__
    url = str((cause.request if isinstance(cause, httpx2.RequestError) else error.request).url)
    through = endpoint.proxy(os.environ, url)
    way = f" through the proxy {endpoint.host_and_port(through)}" if through else ""
    is_closed = isinstance(cause, httpx2.ReadError | httpx2.RemoteProtocolError | httpx2.WriteError)
    what = "answer from" if is_closed else "connection to"
    why = _system_error(cause) or str(cause or error) or type(cause).__name__
    text = f"no {what} {endpoint.place(url, os.environ)}{way}: {why}"
    return Refusal(text, retry=True, unavailable=True, closed_on=bytes_of(error.request) if is_closed else None)


def _system_error(error: BaseException | None) -> str:
    """Return the operating system's text for a failed connection, such as `Connection refused`; empty if there is none.

    The HTTP client's own text, "All connection attempts failed", names no cause.
    """
    found = ""
    while error is not None:
        # One error for each of the server's addresses.
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error
        if isinstance(error, socket.gaierror):
            found = error.strerror or found
        # The number of an error of TLS is not one of the system.
        elif isinstance(error, OSError) and error.errno and not isinstance(error, ssl.SSLError):
            found = os.strerror(error.errno)
        error = error.__cause__ or error.__context__
    return found


def bytes_of(request: httpx2.Request) -> int:
    """Return the length of a request's body in bytes, by its header; 0 if it has none."""
    return int(request.headers.get("content-length", 0))


def _judge_status(status: int, body: object, wait: float = 0, otherwise: str = "") -> Refusal:
    """Return the refusal for an HTTP `status` and the `body` of an error.

    In the middle of a stream the status is 200, and the code or type in the body is used in its place. `wait` is how
    many seconds the headers ask for, `otherwise` the text to use if the body has none. Third-party servers may put
    code, type and message at the top of the body, without an `error` around them.
    """
    said = body.get("error", body) if isinstance(body, dict) else body
    said = said if isinstance(said, dict) else {"message": said if isinstance(said, str) else ""}
    kind, text = str(said.get("type") or "error"), str(said.get("message") or said.get("msg") or "")
    # LiteLLM writes the word.
    kind = "error" if kind == "None" else kind
    in_stream = status == _OK
    if in_stream:
        code = said.get("code")
        status = code if isinstance(code, int) and 400 <= code < 600 else _STATUS.get(kind, 500)  # noqa: PLR2004
    named = bool(text) and not endpoint.is_page(body)
    if (inner := _inner_message(said)) and inner not in text:
        text = f"{text.removesuffix('.')}: {inner}" if text else inner
    details = said.get("details")
    # The API names images that are too large here, and not always in its words.
    paths = details.get("paths") if isinstance(details, dict) else None
    if isinstance(paths, list) and (unsaid := [str(path) for path in paths if str(path) not in text]):
        text = f"{text} ({', '.join(unsaid)})"
    # The tags of a page say nothing to a reader.
    text = _PAGE if endpoint.is_page(body) else (text or otherwise or str(body))[:_MOST_SAID]
    if status == _NO_PAYMENT or _OF_ACCOUNT.search(f"{kind} {text}"):
        return Refusal(
            f"the account cannot be used: {text}",
            retry=True,
            wait=_seconds_until_reset(text) or wait,
            unavailable=True,
            of_account=True,
        )
    is_too_long = status in MAY_BE_TOO_LONG and models.is_too_long(f"{kind} {said.get('code')} {text}")
    window = said.get("n_ctx")
    if is_too_long or (status == _RATE_LIMITED and _exceeds_limit(text)):
        return Refusal(
            f"the API refused the request ({status} {kind}): {text}",
            retry=False,
            code=ExitCode.FAILED,
            kind=TooLongError,
            window=window if isinstance(window, int) and window > 0 else models.window_in_text(text),
        )
    if status in _RETRIED_STATUS:
        names_cause = named and status == FAILED and not _NO_CAUSE.fullmatch(text.strip().lower())
        return Refusal(
            f"during the reply, {kind}: {text}" if in_stream else f"{status} {kind}: {text}",
            retry=True,
            wait=wait,
            shared=not in_stream and status in _SHARED,
            unavailable=not in_stream and status in UNAVAILABLE,
            cause=_without_numbers(text)[:_MOST_CAUSE] if names_cause else "",
            names_media=status == FAILED and _NAMES_MEDIA.search(text) is not None,
            is_of_form=_OF_FORM.search(text) is not None,
        )
    if status in _NO_SUCH_PATH and endpoint.is_page(body):
        text = f"the address serves {_PAGE}, no API ({status})"
        return Refusal(text, retry=False, code=ExitCode.CREDENTIALS, status=status)
    if status in (401, 403) and not _MODERATED.search(text):
        return Refusal(
            f"the API refused the credentials ({kind if in_stream else status}): {text}",
            retry=False,
            code=ExitCode.CREDENTIALS,
        )
    # By the error, the loop knows what may help.
    raised = ModelError
    if status == _TOO_LARGE:
        raised = TooLongError
    elif status in _MAY_BE_UNKNOWN and (_UNKNOWN_MODEL.search(text) is not None or models.lacks_tools(text)):
        raised = UnknownModelError
    elif _DEFERRED_TOOLS.search(text) is not None:
        raised = DeferredToolsError
    elif _STALE_THINKING.search(text) is not None:
        raised = StaleThinkingError
    return Refusal(
        f"the API refused the request ({kind if in_stream else f'{status} {kind}'}): {text}",
        retry=False,
        code=ExitCode.FAILED,
        kind=raised,
        status=status,
        is_large=status == _TOO_LARGE,
        names_media=status in MAY_BE_MEDIA and _NAMES_MEDIA.search(text) is not None,
        is_of_form=_OF_FORM.search(text) is not None,
    )


def _inner_message(value: object, depth: int = 0) -> str:
    """Return the last message nested in an error, as of the server behind a gateway; empty if there is none."""
    found = ""
    if depth < _MOST_NESTED:
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            said = each.get("message") if isinstance(each, dict) else None
            found = _inner_message(each, depth + 1) or (said if isinstance(said, str) else "") or found
    return found


def _seconds_until_reset(text: str) -> float:
    """Return the seconds until the time at which an account may be used again; 0 if the text names none."""
    if (match := _REGAIN.search(text)) is None:
        return 0
    at = _seconds(f"{match[1]}T{match[2]}:00+00:00")
    return max(0.0, min(at - time.time(), _LONGEST_SPEND_LIMIT)) if at is not None else 0


def _exceeds_limit(text: str) -> bool:
    """Return True if the text of a rate limit says that the request alone exceeds it, so that no wait helps."""
    if (numbers := _LIMIT_AND_REQUESTED.search(text)) is None:
        return False
    limit, requested = (int(each.replace(",", "")) for each in numbers.groups())
    return requested > limit


def _without_numbers(text: str) -> str:
    return re.sub(r"\d+", "", text)


def _retry_after(error: anthropic.APIStatusError) -> float:
    """Return the seconds to wait that the headers of an error name; 0 if they name none.

    That is `retry-after`, else for a rate limit the latest reset of a limit that is used up.
    """
    headers = error.response.headers
    now = _seconds(headers.get("date")) or time.time()
    if (given := headers.get("retry-after")) is not None:
        try:
            return min(max(0.0, float(given)), _LONGEST_RESET)
        except ValueError:
            return min(max(0.0, (_seconds(given) or now) - now), _LONGEST_RESET)
    resets = [
        _seconds(value) or now
        for name, value in headers.items()
        if (match := _RESET.fullmatch(name)) and headers.get(f"{match[1]}-remaining", "0") == "0"
    ]
    wait = max(resets, default=now) - now if error.status_code == _RATE_LIMITED else 0.0
    return min(max(0.0, wait), _LONGEST_RESET)


def _seconds(text: str | None) -> float | None:
    """Return a time in a header as epoch seconds; None if it is no number, RFC 3339 or the form of `date`."""
    forms: tuple[Callable[[str], float], ...] = (
        float,
        lambda given: datetime.fromisoformat(given).timestamp(),
        lambda given: parsedate_to_datetime(given).timestamp(),
    )
    for parse in forms:
        with contextlib.suppress(ValueError, OverflowError, TypeError):
            found = parse(text or "")
            if math.isfinite(found):
                return found
    return None
