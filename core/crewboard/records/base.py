"""The base of all records, and types that several of them use."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue

MAX_DEPTH = 32
"""Deepest accepted nesting of metadata and payloads. Deeper values could exhaust the stack of a reader."""

Time = Annotated[float, Field(ge=0, le=253_402_300_799, allow_inf_nan=False)]
"""Epoch seconds up to the year 9999, the last one that calendar functions can show."""


class Record(BaseModel):
    """Base of everything that is stored in a team directory."""

    model_config = ConfigDict(extra="allow", populate_by_name=True, serialize_by_alias=True)


def check_depth(value: JsonValue, limit: int = MAX_DEPTH) -> int:
    """Return how deeply `value` is nested.

    Raises:
        ValueError: It is nested deeper than `limit`.
    """
    if limit < 0:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max((check_depth(child, limit - 1) for child in children), default=0)
