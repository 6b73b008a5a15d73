"""The pages of the documentation, taken apart: links, anchors, paths, tables and the parts that are generated."""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"

_FENCE = re.compile(r"^(`{3,}).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} +(.*?) *$", re.MULTILINE)
_LINK = re.compile(r"\[[^\]\n]*\]\(([^()\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_MODULE = re.compile(r"[\w.-]+(?:/[\w.-]+)*\.(?:py|tcss)")
_FOLDER = re.compile(r"(?:core|tui|tests|docs|screenshots)/(?:[\w.-]+/)*")
_SLUG_DROPS = re.compile(r"[^\w\- ]")

_HOMES = ("", "core/crewboard/", "tui/crewboard_tui/")
"""The places where a module that a page names may be: the repository's root, or one of the two packages."""


def pages() -> list[Path]:
    """Return every page: `docs/` and the Markdown files at the top."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@cache
def prose(page: Path) -> str:
    """Return a page without its fenced code blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in _HEADING.findall(prose(page)):
        slug = _slug(heading)
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def _slug(heading: str) -> str:
    text = _LINK.sub(lambda link: link[0][1 : link[0].index("]")], heading)
    text = text.replace("`", "").replace("&lt;", "<").replace("&gt;", ">")
    return _SLUG_DROPS.sub("", text.lower()).replace(" ", "-")


def links(page: Path) -> list[str]:
    """Return the targets of a page's links."""
    return _LINK.findall(_CODE.sub("", prose(page)))


def broken_links(page: Path) -> Iterator[str]:
    """Yield each relative link of a page whose file or anchor does not exist."""
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


def missing_paths(page: Path) -> Iterator[str]:
    """Yield each module or folder of this repository that a page names and that does not exist."""
    for code in _CODE.findall(prose(page)):
        if _MODULE.fullmatch(code) and not any((ROOT / home / code).is_file() for home in _HOMES):
            yield code
        if _FOLDER.fullmatch(code) and not (ROOT / code).is_dir():
            yield code


def marked_names(page: Path, kind: str, name: str) -> list[str]:
    """Return the names in the first column of the table behind the mark `<!-- kind: name -->`."""
    text = page.read_text(encoding="utf-8")
    _, mark, rest = text.partition(f"<!-- {kind}: {name} -->")
    assert mark, f"{page.relative_to(ROOT)} has no mark {kind}: {name}"
    _, head, rows = rest.partition("|---|")
    assert head, f"no table follows {kind}: {name} in {page.relative_to(ROOT)}"
    found = []
    for row in rows.split("\n\n")[0].splitlines()[1:]:
        found += _CODE.findall(row.split("|")[1]) or [row.split("|")[1].strip()]
    return found


def marks(page: Path, kind: str) -> list[str]:
    """Return the names of a page's marks of one kind."""
    return re.findall(rf"<!-- {kind}: ([\w-]+) -->", page.read_text(encoding="utf-8"))


def generated(page: Path) -> dict[str, str]:
    """Return the parts of a page that are generated, by their names."""
    return {name: text.strip() for name, text in _parts(page.read_text(encoding="utf-8"))}


def _parts(text: str) -> list[tuple[str, str]]:
    return re.findall(r"<!-- generated: ([\w-]+) -->\n(.*?)<!-- end -->", text, re.DOTALL)


def replace_generated(page: Path, name: str, body: str) -> None:
    """Write the part `name` of a page anew."""
    text = page.read_text(encoding="utf-8")
    start = f"<!-- generated: {name} -->\n"
    before, _, rest = text.partition(start)
    after = rest.partition("<!-- end -->")[2]
    page.write_text(f"{before}{start}\n{body}\n\n<!-- end -->{after}", encoding="utf-8")
