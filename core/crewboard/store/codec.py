"""Records to JSON bytes and back. What comes out holds no raw newline, no U+2028 and no lone surrogate."""

import json
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from crewboard.errors import BadDataError
from crewboard.records import Event, Record

R = TypeVar("R", bound=Record)

_EVENTS: TypeAdapter[Event] = TypeAdapter(Event)


def encode(record: Record, *, indent: int | None = None) -> bytes:
    """`record` as ASCII JSON, ended by a newline."""
    text = json.dumps(record.model_dump(), ensure_ascii=True, allow_nan=False, indent=indent)
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
        value = json.loads(data, parse_constant=_refuse)
        if b"\\ud" in data.lower():
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise BadDataError(f"no usable JSON: {str(error)[:80] or type(error).__name__}") from error
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")


def _first_complaint(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the record"
    return f"{where}: {first['msg']}"
