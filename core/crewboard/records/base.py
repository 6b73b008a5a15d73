"""What all records have in common."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue

MAX_DEPTH = 32
"""Deepest nesting of metadata or payload that is accepted; deeper is a trap for readers, not data."""

Time = Annotated[float, Field(ge=0, le=253_402_300_799, allow_inf_nan=False)]
"""Epoch seconds up to the year 9999, which every calendar function can show."""


class Record(BaseModel):
    """Base of everything that is kept in a team directory."""

    model_config = ConfigDict(extra="allow", populate_by_name=True, serialize_by_alias=True)


def check_depth(value: JsonValue, limit: int = MAX_DEPTH) -> int:
    """How deep `value` is nested.

    Raises:
        ValueError: Deeper than `limit`.
    """
    if limit < 0:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max((check_depth(child, limit - 1) for child in children), default=0)
