"""Parts of the system that a test needs and a bare machine lacks."""

import os
import shutil

import pytest


def need(part: str, complaint: str | None) -> None:
    """Skip the test if `part` does not work here; in CI, which has all parts, fail."""
    if complaint is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"{part} must work in CI: {complaint}")
    pytest.skip(f"{part} does not work here: {complaint}")


def need_program(name: str) -> None:
    """Skip the test if a program is not installed; in CI, fail."""
    need(name, None if shutil.which(name) else "it is not installed")
