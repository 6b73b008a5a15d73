"""Escaping of untrusted text before it reaches a terminal."""

import sys
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from crewboard.untrusted import as_run
from crewboard_tui.render.lines import Span, clip, crop, hang, pad, plain, rule_line, spread, width_of, wrap
from crewboard_tui.render.sanitize import safe_line, safe_lines, safe_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("\x1b[2J", "␛[2J"),
        ("a\x07b\x00c", "a␇b␀c"),
        ("\x7f", "␡"),
        ("\x9b31m", "<U+009B>31m"),
        ("abc\u202edcba", "abc<U+202E>dcba"),
        ("a\u200bb\u200db\ufeff", "a<U+200B>b<U+200D>b<U+FEFF>"),
        ("a\u2028b", "a<U+2028>b"),
        ("\u3164hangul filler", "<U+3164>hangul filler"),
        ("\ud800", "<U+D800>"),
        ("one\r\ntwo\rthree", "one\ntwo␍three"),
        ("echo \\\r\nmake", "echo \\␍\nmake"),
        ("日本 ü é", "日本 ü é"),
        ("⚠\ufe0f ❤\ufe0f ↔\ufe0f 1\ufe0f\u20e3", "⚠\ufe0f ❤\ufe0f ↔\ufe0f 1\ufe0f\u20e3"),
        ("⚠\ufe0f\ufe0f a\ufe0f \ufe0f", "⚠\ufe0f<U+FE0F> a<U+FE0F> <U+FE0F>"),
        ("1\u20e3 x\u20e3", "1\u20e3 x<U+20E3>"),
        ("r\u0336m\u0336", "r<U+0336>m<U+0336>"),
        ("private \ue0b0 \U000f0001", "private <U+E0B0> <U+F0001>"),
        ("bientôt\u00a0! 東\u3000京", "bientôt\u00a0! 東\u3000京"),
        ("[@click=app.quit]x[/]", "[@click=app.quit]x[/]"),
    ],
)
def test_what_could_act_becomes_visible(text: str, shown: str) -> None:
    assert safe_text(text) == shown


INVISIBLE = [
    # What Unicode calls ignorable by default.
    0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), *range(0x200B, 0x2010),
    *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0x3164, *range(0xFE00, 0xFE10), 0xFEFF, 0xFFA0,
    *range(0xFFF0, 0xFFF9), *range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B), *range(0xE0000, 0xE1000),
    # What has an empty picture, breaks lines, or is no character.
    0x2028, 0x2029, 0x2800, 0x16FE4, 0x1D159, *range(0xFDD0, 0xFDF0),
    # Blank and joined hieroglyphs.
    *range(0x13430, 0x13447),
    *(plane << 16 | last for plane in range(17) for last in (0xFFFE, 0xFFFF)),
]  # fmt: skip


def test_no_invisible_character_is_left() -> None:
    shown = {code: safe_text(f"a{chr(code)}b") for code in INVISIBLE}
    assert shown == {code: f"a<U+{code:04X}>b" for code in INVISIBLE}


def _all(wanted: Callable[[str], bool]) -> list[str]:
    return [chr(code) for code in range(sys.maxunicode + 1) if wanted(chr(code))]


def test_what_covers_another_character_is_marked() -> None:
    covering = _all(lambda each: unicodedata.combining(each) == 1 or unicodedata.category(each) == "Me")
    assert len(covering) > 30
    assert [each for each in covering if safe_text(f"a{each}b") != f"a<U+{ord(each):04X}>b"] == []


def test_each_blank_that_separates_no_words_is_marked_in_what_is_run() -> None:
    blanks = _all(lambda each: unicodedata.category(each) == "Zs" and each != " ")
    assert len(blanks) > 15
    assert [each for each in blanks if as_run(f"a{each}b") != f"a<U+{ord(each):04X}>b"] == []
    assert as_run("a b\tc\nd é") == "a b\tc\nd é"


def test_what_unicode_has_as_an_ascii_character_is_marked_in_what_is_run() -> None:
    same = _all(lambda each: not each.isascii() and unicodedata.normalize("NFC", each).isascii())
    assert "\N{GREEK QUESTION MARK}" in same
    assert [each for each in same if as_run(each) != f"<U+{ord(each):04X}>"] == []


def test_one_line_stays_one_line() -> None:
    assert safe_line("a\n\tb\u2028c") == "a b<U+2028>c"
    assert safe_lines("a\tb\nc") == ["a    b", "c"]


@given(st.text())
def test_nothing_unprintable_is_left_but_newline_and_tab(text: str) -> None:
    for character in safe_text(text):
        assert character in "\n\t" or ord(character) >= 0x20
        assert not 0x7F <= ord(character) <= 0x9F


@given(st.text(), st.integers(0, 40))
def test_clipping_keeps_within_its_width(text: str, width: int) -> None:
    text = safe_line(text)
    assert cell_len(clip(text, width)) <= width
    assert cell_len(pad(text, width)) == width


@given(st.lists(st.text()), st.integers(0, 40))
def test_cropping_keeps_within_its_width(texts: list[str], width: int) -> None:
    line = tuple(Span(safe_line(text)) for text in texts)
    assert width_of(crop(line, width)) <= width
    assert width_of(spread(line, (Span("right"),), width)) <= max(width, 0)


@given(st.text(), st.integers(1, 30))
def test_wrapping_loses_no_word_and_keeps_within_its_width(text: str, width: int) -> None:
    lines = wrap(text, width)
    if width > 1:
        assert all(cell_len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join("".join(safe_lines(text)).split())


def test_a_word_that_is_too_long_is_broken() -> None:
    assert wrap("see aaaaaaaaaa", 4) == ("see", "aaaa", "aaaa", "aa")
    assert wrap("- one two three", 9, "  ") == ("- one two", "  three")


@given(st.lists(st.text()), st.integers(1, 30), st.integers(0, 12), st.integers(1, 4))
def test_what_hangs_behind_a_label_keeps_its_width_and_its_words(
    texts: list[str], width: int, indent: int, most: int
) -> None:
    content = tuple(Span(safe_line(text)) for text in texts)
    rows = hang(content, width, indent, most)
    assert len(rows) <= most
    assert all(width_of(row) <= width for row in rows)
    whole = "".join("".join(span.text for span in row) for row in hang(content, 20, 4, 10_000))
    assert whole.split() or not "".join(texts).split()
    assert "".join(whole.split()) == "".join("".join(span.text for span in content).split())


@pytest.mark.parametrize("sign", "+<=>|~")
def test_no_sign_of_a_command_hides_a_selector(sign: str) -> None:
    assert safe_line(f"X{sign}\ufe0f; touch A") == f"X{sign}<U+FE0F>; touch A"
    assert safe_line("\u25b6\ufe0f runs \u2194\ufe0f") == "\u25b6\ufe0f runs \u2194\ufe0f"


def test_no_head_is_read_as_the_last_word_of_the_title() -> None:
    head = (Span("agent model  in"),)
    assert plain(rule_line("A title", "", head, 4, 24, is_focused=False)) == "── A title ───── in ────"
    assert plain(rule_line("Title", "", head, 4, 24, is_focused=False)) == "── Title ─────── in ────"
    assert plain(rule_line("A tit", "", head, 6, 26, is_focused=False)) == "── A tit ── model  in ────"
