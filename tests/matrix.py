"""Matrices of tests: the most telling cases run by default, the others are long."""

from collections.abc import Iterable
from typing import Any

import pytest


def default(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """Return `cases`, the values of one parameter, of which all but `kept` run in `make test-long` only."""
    return [case if case in kept else pytest.param(case, marks=pytest.mark.long) for case in cases]
