"""The names that a script may import from `crewboard`, and what the guide shows of it."""

import inspect
import re
import subprocess
import sys

import crewboard
from crewboard import errors
from tests.docs.pages import ROOT


def test_every_public_name_can_be_imported() -> None:
    assert [name for name in crewboard.__all__ if getattr(crewboard, name, None) is None] == []


def test_every_error_is_public() -> None:
    classes = [value for value in vars(errors).values() if inspect.isclass(value)]
    assert {each.__name__ for each in classes if each.__module__ == errors.__name__} <= set(crewboard.__all__)


def test_a_public_name_is_what_its_module_defines() -> None:
    from crewboard.commands import context, stop

    assert crewboard.create_team is context.create
    assert crewboard.delete_team is stop.delete


def test_importing_the_package_loads_nothing_else() -> None:
    code = "import sys, crewboard; print([name for name in sys.modules if name.startswith(('crewboard.', 'pydantic'))])"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_names_that_the_guide_uses_are_public() -> None:
    guide = (ROOT / "docs/guide.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\bcrewboard\.([A-Za-z]\w+)\(", guide)) <= set(crewboard.__all__)
