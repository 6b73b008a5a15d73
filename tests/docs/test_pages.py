"""The documentation holds together: links, anchors and paths exist, also those that comments in the code name."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from crewboard import engines
from tests.bench import page as performance
from tests.bench.figures import Figure
from tests.docs.pages import ROOT, anchors, broken_links, links, missing_paths, pages, prose

_CITED = re.compile(r"docs/[\w/-]+\.md(?:#[\w-]+)?")
_PRIVATE = re.compile(r"contract § ?\d|\bui\.md|\bfacts\.md|\bdesign\.md|\bcontract\.md")
"""Words that name pages which are not in the repository."""

_OUTDATED = re.compile(
    r"(?i)\b(?:(?:some|no|every|any)body|whoever|whom|mend(?:s|ed)?|lest|amid|besides|zygote|doorbell|embedded model)\b"
)
"""Words that the glossary has replaced."""

_GENERATED = re.compile(r"<!-- generated: .*?<!-- end -->", re.DOTALL)

_PASSED_OVER = frozenset({"__pycache__", "offline", "sample", "docs"})
"""Folders whose files name pages of other projects, as examples."""


def _sources() -> Iterator[Path]:
    for folder in ("core", "tui", "tests"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".tcss") and not _PASSED_OVER & set(path.relative_to(ROOT).parts):
                yield path


SOURCES = {path: path.read_text(encoding="utf-8") for path in _sources()}


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", pages(), ids=_name)
def test_links_and_anchors_of_a_page_exist(page: Path) -> None:
    assert list(broken_links(page)) == []


def test_each_promise_of_security_has_its_mechanism_and_a_test() -> None:
    page = ROOT / "SECURITY.md"
    assert page.stat().st_size < 40_000 / 3, "more than that is not read"
    _, head, rest = page.read_text(encoding="utf-8").partition("| promise | how | test |\n|---|---|---|\n")
    assert head
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in rest.partition("\n\n")[0].splitlines()]
    assert [row for row in rows if len(row) != len(head.splitlines()[0].strip("|").split("|")) or not all(row)] == []
    for promise, _, tests in rows:
        named = re.findall(r"`([^`]+)`", tests)
        assert named, promise
        assert [name for name in named if not any(map(_has_tests, _files_of(ROOT / name)))] == [], promise


def _files_of(path: Path) -> Iterator[Path]:
    return path.glob("test_*.py") if path.is_dir() else iter([path])


def _has_tests(path: Path) -> bool:
    return (
        path.is_file()
        and re.search(r"^(?:async )?def test_", path.read_text(encoding="utf-8"), re.MULTILINE) is not None
    )


@pytest.mark.parametrize("page", [page for page in pages() if page.name != "CHANGELOG.md"], ids=_name)
def test_modules_and_folders_named_by_a_page_exist(page: Path) -> None:
    assert list(missing_paths(page)) == []


def test_pages_cited_in_the_code_exist() -> None:
    wrong = []
    for path, text in SOURCES.items():
        for cited in _CITED.findall(text):
            name, _, anchor = cited.partition("#")
            page = ROOT / name
            if not page.is_file() or (anchor and anchor not in anchors(page)):
                wrong.append(f"{path.relative_to(ROOT)}: {cited}")
    assert wrong == []


def test_code_cites_no_page_outside_the_repository() -> None:
    assert [str(path.relative_to(ROOT)) for path, text in SOURCES.items() if _PRIVATE.search(text)] == []


@pytest.mark.parametrize("page", pages(), ids=_name)
def test_a_page_uses_the_words_of_the_glossary(page: Path) -> None:
    assert _OUTDATED.findall(_GENERATED.sub("", prose(page))) == []


def test_badges_say_what_the_project_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = {path.stem: path.read_text() for path in (ROOT / "docs" / "badges").glob("*.svg")}
    assert f">{project['requires-python'].removeprefix('>=')} and newer<" in said["python"]
    assert f">{project['license']}<" in said["licence"]
    assert ">Linux<" in said["platform"]
    assert "Operating System :: POSIX :: Linux" in project["classifiers"]
    assert said.keys() == {"python", "licence", "platform"}


def test_measured_figures_of_the_readme_are_those_of_the_page() -> None:
    section = prose(ROOT / "README.md").partition("Measured on")[2].partition("\n## ")[0]
    figures = re.findall(r"[\d.]+ (?:ms|MiB|%)", section)
    measured = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    assert len(figures) >= 3
    assert [figure for figure in figures if f" {figure}" not in measured] == []


MACHINE = dict.fromkeys(("commit", "kind", "load", "processor", "cores", "memory_gib", "python", "system"), "any")


def test_a_baseline_that_measured_nothing_stands_on_the_page() -> None:
    figure = Figure("at rest", 0.09992, "% of a core", "a Python that only wakes as often", 0.0, target=0.5)
    assert figure.row() == ("at rest", "0.1 % of a core", figure.baseline, "0 % of a core", "", "≤ 0.5")
    report = {"at": 0, "machine": MACHINE, "figures": [{**asdict(figure), "file": "test_screen.py"}]}
    assert (
        "| at rest | 0.1 % of a core | a Python that only wakes as often: 0 % of a core |  | ≤ 0.5 |"
        in performance.page(report)
    )


def test_the_page_shows_other_programs_only_where_measured() -> None:
    alone, other = (Figure(f"{who}: at rest", 0.15, "%", file="test_peers.py") for who in ("crewboard", "bernstein"))
    report = {"at": 0, "machine": MACHINE, "figures": [asdict(alone)]}
    assert "at rest |" not in performance.page(report)
    both = performance.page({**report, "figures": [asdict(alone), asdict(other)]})
    assert "| crewboard: at rest |" in both
    assert "| bernstein: at rest |" in both


def test_programs_of_engines_are_named_in_versions_that_were_tested() -> None:
    tested = {(known.package, version) for known in engines.KNOWN.values() for version in known.tested}
    named = {
        (package, version)
        for page in pages()
        if page.name != "CHANGELOG.md"
        for package, version in re.findall(
            r"(@agentclientprotocol/[\w-]+)@([\w.]+\w)", page.read_text(encoding="utf-8")
        )
    }
    assert named
    assert named <= tested


def test_every_page_is_in_an_index() -> None:
    indexes = [page for page in pages() if page.name == "README.md"]
    linked = {(page.parent / link.partition("#")[0]).resolve() for page in indexes for link in links(page)}
    below = {page for page in pages() if page.is_relative_to(ROOT / "docs")}
    assert below - linked - {ROOT / "docs/README.md"} == set()
