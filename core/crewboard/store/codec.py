"""Records to JSON bytes and back. What comes out holds no raw newline, no U+2028 and no lone surrogate.

What comes in is checked so far that it can go out again: a line that somebody else wrote must not be one that its
reader can take in but never write down.
"""

import json
import math
from typing import Any, NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError

from crewboard.errors import BadDataError
from crewboard.records import Event, Record

R = TypeVar("R", bound=Record)

MAX_DEPTH = 64
"""Deepest nesting of a record as a whole; half of it is left to what others may fill in (`records.MAX_DEPTH`)."""

_LONGEST_COMPLAINT = 120

_EVENTS: TypeAdapter[Event] = TypeAdapter(Event)


def encode(record: Record, *, indent: int | None = None) -> bytes:
    """`record` as ASCII JSON, ended by a newline.

    Raises:
        BadDataError: It holds what JSON has no form for, or is nested too deep to be read again.
    """
    value = record.model_dump()
    _check_depth(value)
    try:
        text = json.dumps(value, ensure_ascii=True, allow_nan=False, indent=indent)
    except (ValueError, TypeError) as error:
        raise BadDataError(f"a {type(record).__name__} cannot be written: {error}") from error
    return text.encode("ascii") + b"\n"


def decode(data: bytes, model: type[R]) -> R:
    """Read a `model` from JSON.

    Raises:
        BadDataError: It is no JSON, or not of the model's form; says where.
    """
    try:
        return model.model_validate(_parse(data))
    except ValidationError as error:
        raise BadDataError(_first_complaint(error)) from error


def decode_event(data: bytes) -> Event:
    """Read a line of a journal.

    Raises:
        BadDataError: It is no JSON, or no event.
    """
    try:
        return _EVENTS.validate_python(_parse(data))
    except ValidationError as error:
        raise BadDataError(_first_complaint(error)) from error


def _parse(data: bytes) -> Any:  # noqa: ANN401  any JSON value
    try:
        value = _DECODER.decode(data.decode("utf-8-sig"))
        if b"\\ud" in data.lower():  # how an escaped surrogate begins, and a lone one cannot be encoded again
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise BadDataError(f"no usable JSON: {str(error)[:80] or type(error).__name__}") from error
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH:
        _check_depth(value)
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


def _finite(digits: str) -> float:
    """A JSON number as a float; one that is too large for it could be read but not written."""
    number = float(digits)
    return number if math.isfinite(number) else _refuse(digits[:20])


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)


def _check_depth(value: Any) -> None:  # noqa: ANN401  any JSON value
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for one in level for child in _children(one)]
        if not level:
            return
    raise BadDataError(f"nested deeper than {MAX_DEPTH}")


def _children(value: Any) -> list[Any]:  # noqa: ANN401  as above
    """The lists and objects right below a value."""
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [child for child in below if isinstance(child, (dict, list))]


def _first_complaint(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the record"
    return f"{where}: {first['msg']}"[:_LONGEST_COMPLAINT]
