"""Screenshots are the same in every run, so that a changed picture means a changed screen."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pyte
import pytest
from pyte.screens import Char

from tests import tour
from tests.recording import COLUMNS, HERE, LINES, Frame, Run, animate, cast
from tests.screenshots import SHOTS, paint_all
from tests.terminal.screen import Screen

PLAIN = Char("")
SVG = "{http://www.w3.org/2000/svg}"
LONGEST_FILE = 1 << 20


@pytest.mark.long
def test_two_runs_paint_the_same_pictures(tmp_path: Path) -> None:
    shots = tuple(shot for shot in SHOTS if shot.name == "board-80x24")
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    for one, other in zip(paint_all(first, shots), paint_all(second, shots), strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
        assert "</svg>" in one.read_text()
        assert one.stat().st_size > 10_000


@pytest.mark.long
async def test_two_runs_of_the_tour_paint_the_same_pictures() -> None:
    first, second = await tour.film(), await tour.film()
    assert [text for text, _ in first] == [text for text, _ in second]
    assert 20 <= sum(seconds for _, seconds in first) <= 40


def test_the_tour_is_small_enough_for_the_first_picture_of_a_page() -> None:
    film = (HERE / "tour.gif").read_bytes()
    assert film.startswith(b"GIF89a")
    assert len(film) <= tour.LARGEST
    # It has more than one picture, and begins again.
    assert b"NETSCAPE2.0" in film
    assert film.count(b"\x21\xf9\x04") >= 12
    assert (HERE.parent / "README.md").read_text().index("screenshots/tour.gif") < 400


def test_the_recording_shows_the_demo_and_asks_no_server_for_anything() -> None:
    text = (HERE / "demo.svg").read_text()
    shown = "".join(ET.fromstring(text).itertext())
    for words in (
        "killed by SIGKILL",
        "is up again",
        "PLAN",
        "approved: fixer",
        "QUESTION",
        "answered: reviewer",
        "1/6 We killed courier on purpose.",
        "3/6 fixer waits for a yes.",
        "6/6 That is all. What the team did:",
        "1 plan approved · 1 question answered",
    ):
        assert words in shown
    assert text.count("://") == text.count('xmlns="http://www.w3.org/2000/svg"') == 1
    header, *printed = (HERE / "demo.cast").read_text().splitlines()
    assert json.loads(header)["version"] == 2
    times = [json.loads(line)[0] for line in printed]
    assert times == sorted(times)
    assert max(len(text.encode()), (HERE / "demo.cast").stat().st_size) < LONGEST_FILE


def frame(at: float, *rows: str) -> Frame:
    return Frame(at, tuple((Run(PLAIN, row),) if row else () for row in rows), "")


def test_a_row_that_stays_is_drawn_once_and_each_screen_has_its_time() -> None:
    drawn = ET.fromstring(animate([frame(0.0, "a", "b"), frame(1.0, "a", "")]))
    assert [each.text for each in drawn.iter(f"{SVG}text")] == ["a", "b"]
    assert [len(each.findall(f"{SVG}use")) for each in drawn.iter(f"{SVG}g") if each.get("class") == "f"] == [2, 1]
    style = "".join(each.text or "" for each in drawn.iter(f"{SVG}style"))
    assert "@keyframes k0{0.000%{visibility:visible}20.000%{visibility:hidden}}" in style
    assert "animation-duration:5.00s" in style


def test_the_cast_paints_what_changed_and_cuts_rests() -> None:
    bold = Run(PLAIN._replace(bold=True, fg="ff0010", bg="000102"), "b")
    last = Frame(9.0, ((Run(PLAIN, "a"),), (Run(PLAIN, "→ "), bold)), "")
    _, begin, first, second, end = map(json.loads, cast([frame(0.0, "a", ""), last]).splitlines())
    assert [first[0], second[0], end[0]] == [0.0, 1.6, 5.6]
    screen = Screen(COLUMNS, LINES)
    stream = pyte.Stream(screen)
    stream.feed(begin[2] + first[2])
    assert [row.rstrip() for row in screen.display[:2]] == ["a", ""]
    assert "a" not in second[2]
    stream.feed(second[2])
    assert [row.rstrip() for row in screen.display[:2]] == ["a", "→ b"]
    assert screen.buffer[1][2] == bold.style._replace(data="b")


def test_a_screen_that_only_counts_on_is_not_recorded_again() -> None:
    assert frame(0.0, "scout   works  9 s · 1,204 tokens").still == frame(1.0, "scout   works 10 s · 998 tokens").still
    assert frame(0.0, "scout   works  9 s").still != frame(1.0, "scout   rests  9 s").still
    assert frame(0.0, "scout").still != frame(0.0, "scout")._replace(key="a").still
