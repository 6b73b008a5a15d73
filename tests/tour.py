"""Make `screenshots/tour.gif` with `python -m tests.tour`: a death, a plan, a question, a diff and what it cost.

The team is the frozen one, so each run on one machine gives the same bytes. The keys are pressed in the dashboard.
"""

import asyncio
import contextlib
import html
import os
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from crewboard.readmodel.processes import Usage
from crewboard.records.agents import Status
from crewboard.records.processes import Exit
from crewboard.store import agents, leases
from crewboard_tui.settings import Settings
from tests.frozen import NOW, PLAN, Frozen, make_team
from tests.screenshots import HERE, add_work, rasterize, same_everywhere
from tests.tui.stage import Stage, opened
from tests.tui.test_changes import AFTER, Repository

COLUMNS, LINES = 100, 28

SCALE = 12 / 12.2
"""Pixels for each of an SVG, whose cells are 12.2 × 24.4: a cell of whole pixels draws a letter alike everywhere, and
what repeats takes few bytes."""

LARGEST = 1 << 20
"""Bytes."""

_COLOURS = 255
"""One is left for what is as it was in the picture before."""

_CAP = """\
<g transform="translate({x} {y})"><rect width="{width}" height="30" rx="5" fill="#414752"/>\
<text x="{middle}" y="21" text-anchor="middle" font-family="Fira Code, monospace" font-size="18" fill="#ffffff">{key}\
</text></g>"""
"""A key of a keyboard."""

_DIFF = """
In `middleware/auth.py`:

```diff
-    return jwt.decode(token, settings.JWT_KEY)
+    return jwt.decode(token, ring.key_of(token))
```
"""


class Film:
    """The pictures of a stage so far, each with the seconds for which it stands."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.frames: list[tuple[str, float]] = []

    async def shows(self, *words: str, seconds: float, key: str = "") -> None:
        """Add the screen once these words are on it and it rests, with the key that was pressed below it."""
        await self._stage.sees(*words)
        await self._stage.settles()
        self.frames.append((_with_key(self._stage.app.export_screenshot(title="crewboard"), key), seconds))

    async def press(self, key: str, *words: str, seconds: float, shown: str = "") -> None:
        """Press a key, and add what it leads to."""
        await self._stage.press(key)
        await self.shows(*words, seconds=seconds, key=shown or key)


def _with_key(svg: str, key: str) -> str:
    """Return a picture with a line below it, in which the pressed key stands."""
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert found is not None
    wide, high = float(found[1]), float(found[2])
    width = 26 + 11 * len(key)
    cap = _CAP.format(
        x=(wide - width) / 2, y=high + 8, width=width, middle=width / 2, key=html.escape(key)
    ) if key else ""  # fmt: skip
    ground = f'<rect x="0" y="{high}" width="{wide}" height="46" fill="#16181d"/>'
    svg = svg.replace(found[0], f'viewBox="0 0 {wide} {high + 46}"', 1)
    return svg.replace("</svg>", f"{ground}{cap}</svg>")


async def _play(stage: Stage, frozen: Frozen, killed: Exit) -> list[tuple[str, float]]:
    film = Film(stage)
    await film.shows("parser     run", seconds=2.5)
    _die(frozen, killed)
    await film.shows("✖ 1 dead", "parser     dead", seconds=2)
    await film.press("!", "parser · why", "collected 214 items", seconds=3)
    await film.press("!", "PLAN v2", seconds=2.5)
    await film.press("space", "return jwt.decode", seconds=2.5, shown="Space")
    await film.press("G", "100% read", "schema change", seconds=2)
    await stage.can("a", "approve")
    await film.press("a", "approved: auth-plan continues", seconds=2)
    frozen.directory.agent("auth-plan").status.save(_working(frozen, "auth-plan", "edit_file keys/ring.py"))
    await stage.press("1")
    # What was written is read at any moment: the head says when.
    await film.press("!", "parser · why", "●4", seconds=0.6)
    await film.press("!", "QUESTION", "yes, with a banner", seconds=2)
    await film.press("j", "▌ no, redirect", seconds=1)
    await stage.can("⏎", "answer")
    await film.press("enter", "answered: docs continues", seconds=1.6, shown="⏎")
    frozen.directory.agent("docs").status.save(_working(frozen, "docs", "edit_file guide/api.md"))
    await film.press("8", "✓ merges cleanly", "rows[: size + 1]", "●5", seconds=2.5)
    await film.press("7", "Dollars per minute", "TEAM", seconds=2.5)
    await film.press("1", "auth-plan  run", seconds=3)
    return film.frames


def _die(frozen: Frozen, killed: Exit) -> None:
    del frozen.probe.held["parser"]
    agents.write_exit(frozen.directory.agent("parser"), killed)


def _working(frozen: Frozen, name: str, doing: str) -> Status:
    status = frozen.directory.agent(name).status.load()
    assert status is not None
    return status.replace(state="working", since=NOW - 2, doing=doing, waiting_for=None)


@contextlib.asynccontextmanager
async def _staged(home: Path) -> AsyncIterator[tuple[Stage, Frozen, Exit]]:
    frozen = make_team(home / "inkpot")
    add_work(frozen)
    waiting = frozen.directory.request("req-004281")
    request = waiting.load()
    assert request is not None
    waiting.save(request.replace(payload={**request.payload, "plan": PLAN.replace("\n## Not", f"{_DIFF}\n## Not")}))
    parser = frozen.directory.agent("parser")
    (parser.path / "exit.json").unlink()
    status = parser.status.load()
    assert status is not None
    parser.status.save(status.replace(doing="bash pytest -x tests/parser", since=NOW - 140))
    frozen.probe.held["parser"] = Usage(31, 180 << 20, 1)
    repository = Repository(frozen)
    repository.snapshot("api", {"src/pages.py": AFTER, "src/cursor.py": "A = 1\n"})
    # Nothing of Claude Code is here that could be mirrored.
    mirrors = leases.take(frozen.directory.mirror_lock)
    assert mirrors is not None
    try:
        with contextlib.chdir(frozen.directory.root):
            async with opened(frozen, COLUMNS, LINES, settings=Settings(reduced_motion=True)) as stage:
                yield stage, frozen, Exit(run=1, signal=9, reason="died", at=NOW - 3, buried=True)
    finally:
        os.close(mirrors.descriptor)


async def film() -> list[tuple[str, float]]:
    """Return the pictures as SVG, each with the seconds for which it stands."""
    with tempfile.TemporaryDirectory() as home, same_everywhere(Path(home)):
        async with _staged(Path(home)) as (stage, frozen, killed):
            return await _play(stage, frozen, killed)


def write(frames: list[tuple[str, float]], browser: str, path: Path) -> None:
    """Write the pictures as one that moves."""
    # Imported here: tests play the film, and draw nothing.
    from PIL import Image

    images: list[Image.Image] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (svg, _) in enumerate(frames):
            source = Path(folder) / f"{number:02}.svg"
            source.write_text(svg)
            images.append(Image.open(rasterize(source, browser, SCALE)).convert("RGB"))
    # One palette for all: a colour that differs by a shade from picture to picture would be stored each time.
    width, height = images[0].size
    sheet = Image.new("RGB", (width, height * len(images)))
    for number, image in enumerate(images):
        sheet.paste(image, (0, number * height))
    palette = sheet.quantize(_COLOURS, dither=Image.Dither.NONE)
    first, *others = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    first.save(
        path, save_all=True, append_images=others, duration=[round(seconds * 1000) for _, seconds in frames], loop=0,
        optimize=True,
    )  # fmt: skip


def main() -> None:
    """Write the film, if there is a browser to draw its pictures."""
    if (browser := shutil.which("chromium")) is None:
        sys.exit("chromium draws the pictures of the film; it is not installed")
    path = HERE / "tour.gif"
    write(asyncio.run(film()), browser, path)
    size = path.stat().st_size
    sys.stdout.write(f"{path} {size} bytes\n")
    if size > LARGEST:
        sys.exit(f"the film is larger than {LARGEST} bytes")


if __name__ == "__main__":
    main()
