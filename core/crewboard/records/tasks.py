"""The task board."""

from typing import Annotated, Literal

from pydantic import Field

from crewboard.names import Name
from crewboard.records.base import Record, Time

TaskStatus = Literal["pending", "in_progress", "completed", "failed", "cancelled"]


class Task(Record):
    """`tasks/<id>.json`."""

    id: Annotated[int, Field(ge=1)]
    subject: str
    description: str = ""
    status: TaskStatus = "pending"
    owner: Name | None = None
    last_owner: Name | None = None
    blocked_by: list[int] = []
    required_type: str | None = None
    created_at: Time = 0
    updated_at: Time = 0
    rev: int = 0
