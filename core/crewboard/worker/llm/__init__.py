"""The worker's client of the Messages API."""

from crewboard.worker.llm.context_window import ContextWindow
from crewboard.worker.llm.model import (
    DEFAULT_WINDOW,
    FIRST_DELAY,
    MAX_DELAY,
    RETRY_BUDGET,
    Model,
    ModelError,
    TooLongError,
)
from crewboard.worker.llm.prompt import preface, system_prompt

__all__ = [
    "DEFAULT_WINDOW",
    "FIRST_DELAY",
    "MAX_DELAY",
    "RETRY_BUDGET",
    "ContextWindow",
    "Model",
    "ModelError",
    "TooLongError",
    "preface",
    "system_prompt",
]
