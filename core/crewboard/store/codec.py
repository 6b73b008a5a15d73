"""Encoding of records as JSON bytes, and decoding with validation.

Encoded records contain no raw newline, no U+2028 and no lone surrogate. Decoding accepts only what can be encoded
again: a worker must be able to write into its journal each message that it can read.
"""

import json
import math
from typing import Any, NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError

from crewboard.records import BadDataError, Event, Record

R = TypeVar("R", bound=Record)

MAX_DEPTH = 64
"""Deepest nesting of a whole record. Half of it is available to the free-form parts (`records.MAX_DEPTH`)."""

_MAX_ERROR_LENGTH = 120

_EVENTS: TypeAdapter[Event] = TypeAdapter(Event)


def encode(record: Record, *, indent: int | None = None) -> bytes:
    """Return `record` as ASCII JSON with a final newline.

    Raises:
        BadDataError: It holds a value that JSON cannot express, or is nested too deep to be read again.
    """
    value = record.model_dump()
    _check_depth(value)
    try:
        text = json.dumps(value, ensure_ascii=True, allow_nan=False, indent=indent)
    except (ValueError, TypeError) as error:
        raise BadDataError(f"a {type(record).__name__} cannot be written: {error}") from error
    return text.encode("ascii") + b"\n"


def decode(data: bytes, model: type[R]) -> R:
    """Parse JSON and validate it as a `model`.

    Raises:
        BadDataError: It is not valid JSON or does not fit the model; the message names the field.
    """
    try:
        return model.model_validate(_parse(data))
    except ValidationError as error:
        raise BadDataError(_first_error(error)) from error


def decode_event(data: bytes) -> Event:
    """Parse a line of a journal.

    Raises:
        BadDataError: It is not valid JSON, or not an event.
    """
    try:
        return _EVENTS.validate_python(_parse(data))
    except ValidationError as error:
        raise BadDataError(_first_error(error)) from error


def _parse(data: bytes) -> Any:  # noqa: ANN401  any JSON value
    try:
        value = _DECODER.decode(data.decode("utf-8-sig"))
        # An escaped surrogate begins so, and a lone one cannot be encoded again.
        if b"\\u" in data and b"\\ud" in data.lower():
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise BadDataError(f"not valid JSON: {str(error)[:80] or type(error).__name__}") from error
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH:
        _check_depth(value)
    return value


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(digits: str) -> float:
    """Return a JSON number as a float; reject one that becomes infinite, because JSON cannot express that again."""
    number = float(digits)
    return number if math.isfinite(number) else _reject_constant(digits[:20])


_DECODER = json.JSONDecoder(parse_constant=_reject_constant, parse_float=_finite)


def _check_depth(value: Any) -> None:  # noqa: ANN401  any JSON value
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for one in level for child in _children(one)]
        if not level:
            return
    raise BadDataError(f"nested deeper than {MAX_DEPTH}")


def _children(value: Any) -> list[Any]:  # noqa: ANN401  as above
    """Return the lists and objects directly inside a value."""
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [child for child in below if isinstance(child, (dict, list))]


def _first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the record"
    return f"{where}: {first['msg']}"[:_MAX_ERROR_LENGTH]
