"""Encoding of records as JSON bytes, and decoding with validation.

Encoded records contain no raw newline, no U+2028 and no lone surrogate. Decoding accepts only what can be encoded
again: a worker must be able to write each message that it can read into its journal.

A record without unknown fields is decoded by a single call of msgspec, and encoded so if its text is ASCII. If that
call fails, a slower way finds out what is wrong, or keeps the unknown fields.
"""

import contextlib
import json
import math
from functools import cache
from typing import Any, NoReturn, TypeVar

import msgspec

from crewboard.errors import BadDataError
from crewboard.records.base import Record, convert, decoder, describe_invalid
from crewboard.records.events import Event, ToolResult

R = TypeVar("R", bound=Record)

MAX_DEPTH = 64
"""Most levels to which a whole record may be nested. Half of them are for the free-form parts (`records.MAX_DEPTH`)."""

_MAX_ERROR_LENGTH = 120


def encode(record: Record, *, indent: int | None = None) -> bytes:
    """Return `record` as ASCII JSON with a newline at its end.

    Raises:
        BadDataError: The record could not be read again: a field does not fit the model, JSON cannot express a value,
            or it is nested too deep.
    """
    if not record.has_unknown():
        with contextlib.suppress(ValueError, TypeError, RecursionError, BadDataError):
            plain = msgspec.json.encode(record)
            # msgspec writes null for NaN and a list for a set.
            if plain.isascii() and decode(plain, type(record)) == record:
                return msgspec.json.format(plain, indent=indent or 0) + b"\n"
    try:
        data = json.dumps(record.as_dict(), ensure_ascii=True, allow_nan=False, indent=indent).encode("ascii")
        decode(data, type(record))
    except (ValueError, TypeError, RecursionError, BadDataError) as error:
        raise BadDataError(f"a {type(record).__name__} cannot be written: {error}") from error
    return data + b"\n"


def decode(data: bytes, model: type[R]) -> R:
    """Parse JSON and validate it as a record of the type `model`.

    Raises:
        BadDataError: It is not valid JSON, does not fit the model, or is nested too deep; the message names the field.
    """
    record: R
    try:
        record = decoder(model).decode(data)
    except (ValueError, RecursionError):
        record = _decode_any(data, model)
        return record
    if _may_be_deep(data):
        _check_depth(msgspec.json.decode(data))
    return record


def decode_event(data: bytes) -> Event:
    """Parse a line of a journal.

    Raises:
        BadDataError: It is not valid JSON, not an event, or nested too deep.
    """
    event: Event
    try:
        event = _events().decode(data)
    except (ValueError, RecursionError):
        event = _decode_any(data, Event)
        return event
    # The results of tools are most of a journal, and hold no value of free form that could be deep.
    if type(event) is not ToolResult and _may_be_deep(data):
        _check_depth(msgspec.json.decode(data))
    return event


@cache
def _events() -> msgspec.json.Decoder[Any]:
    """Return the decoder of all events. It is made at its first use, because the dashboard starts without a journal."""
    return decoder(Event)


def prepare(model: type[Record] = Record) -> None:
    """Build the decoders and field tables of a record type and its subtypes now, not at their first use."""
    _events()
    decoder(model)
    model.prepare()
    for each in model.__subclasses__():
        prepare(each)


def _decode_any(data: bytes, model: Any) -> Any:  # noqa: ANN401  a type or a union
    """Return a record that a single call of msgspec does not decode: keep unknown fields, replace lone surrogates.

    Raises:
        BadDataError: It is not valid JSON, does not fit the model, or is nested too deep.
    """
    try:
        value = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        try:
            value = _DECODER.decode(data.decode("utf-8-sig"))
            # An escaped surrogate begins so, and a lone one cannot be encoded again.
            if b"\\u" in data and b"\\ud" in data.lower():
                value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
        except (ValueError, RecursionError) as error:
            raise BadDataError(f"not valid JSON: {str(error)[:80] or type(error).__name__}") from error
    if _may_be_deep(data):
        _check_depth(value)
    try:
        return convert(value, model)
    except msgspec.ValidationError as error:
        raise BadDataError(describe_invalid(error, "the record")[:_MAX_ERROR_LENGTH]) from error


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(digits: str) -> float:
    """Return a JSON number as a float.

    Raises:
        ValueError: It is too large for a float, so JSON could not express it again.
    """
    number = float(digits)
    return number if math.isfinite(number) else _reject_constant(digits[:20])


_DECODER = json.JSONDecoder(parse_constant=_reject_constant, parse_float=_finite)


def _may_be_deep(data: bytes) -> bool:
    return data.count(b"{") + data.count(b"[") > MAX_DEPTH


def _check_depth(value: Any) -> None:  # noqa: ANN401  any JSON value
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        # The lists and objects directly inside of them.
        inside = [child for one in level for child in (one.values() if isinstance(one, dict) else one)]
        level = [child for child in inside if isinstance(child, (dict, list))]
        if not level:
            return
    raise BadDataError(f"nested deeper than {MAX_DEPTH}")
