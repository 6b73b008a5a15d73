"""The looks of the whole screen: colour themes, the stylesheet that uses them, the ASCII filter.

Text has a contrast of at least 4.5 : 1 (WCAG 2.2, 1.4.3), in the high-contrast theme 7 : 1 (1.4.6). A user's theme with
less contrast is refused.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from math import floor
from types import MappingProxyType

from rich.color import Color as SentColor
from rich.color import ColorSystem
from rich.segment import Segment
from rich.terminal_theme import DEFAULT_TERMINAL_THEME
from textual.color import Color
from textual.css.stylesheet import Stylesheet
from textual.filter import LineFilter
from textual.theme import BUILTIN_THEMES, Theme

from crewboard_tui.render.looks import to_ascii

_LEAST = "least-contrast"
"""The variable with the least contrast of texts in a theme and in those based on it; without it, 4.5 : 1."""


def _theme(  # noqa: PLR0913  a colour for each role and ground
    name: str, *, text: str, dim: str, trace: str, key: str, need: str, bad: str, good: str, info: str,
    ground: str, surface: str, panel: str, frame: str, cursor: str, added: str, deleted: str,
    secondary: str | None, accent: str | None = None, dark: bool = True, more: Mapping[str, str] = MappingProxyType({}),
) -> Theme:  # fmt: skip
    """Return a theme: the colours of its roles and grounds, and `more` variables, which replace the usual ones."""
    return Theme(
        name=f"crewboard-{name}", primary=key, secondary=secondary, accent=accent or key, warning=need, error=bad,
        success=good, foreground=text, background=ground, surface=surface, panel=panel, dark=dark,
        variables={
            "info": info, "muted": dim, "trace": trace, "frame": frame, "frame-focus": key, "border": key,
            "border-blurred": frame, "cursor-row": cursor, "add": added, "del": deleted, "need": need, "bad": bad,
            "good": good, "on-need": ground, "on-bad": ground, "on-good": ground, **more,
        },
    )  # fmt: skip


DARK = _theme(
    "dark", text="#d3d7de", dim="#959ca8", trace="#5d6675", key="#7aa2f7", need="#e8b35c", bad="#f2777a",
    good="#8cc98f", info="#7cc4d8", ground="#16181d", surface="#1c1f26", panel="#262a33", frame="#414752",
    cursor="#2b3346", added="#1d3324", deleted="#3b2227", secondary="#7dcfff",
)  # fmt: skip

LIGHT = _theme(
    "light", text="#1f2430", dim="#5e6470", trace="#868e9b", key="#2455b3", need="#8a5a00", bad="#b3261e",
    good="#1f6f33", info="#0b6a86", ground="#fbfbf8", surface="#f3f3ee", panel="#e6e6df", frame="#b5bac0",
    cursor="#dbe4f7", added="#dff3e3", deleted="#fbe1e0", secondary="#0f6d8c", dark=False,
    more={"need": "#f5c451", "on-need": "#1f2430"},
)  # fmt: skip

CONTRAST = _theme(
    "contrast", text="#ffffff", dim="#d4d4d4", trace="#9a9a9a", key="#8fd0ff", need="#ffd75f", bad="#ffabab",
    good="#86f58e", info="#7fe9ff", ground="#000000", surface="#000000", panel="#161616", frame="#b8b8b8",
    cursor="#00306a", added="#0d2b14", deleted="#3a0f14", secondary="#7fe9ff", more={_LEAST: "7"},
)  # fmt: skip


def _blend(ground: str, colour: str | None, share: float) -> str:
    """Return `ground` mixed with a `share` of a colour, as a hexadecimal colour."""
    return Color.parse(ground).blend(Color.parse(colour or ""), share).hex


def _adopted(name: str, info: str, *, key: str = "", bad: str = "") -> Theme:
    """Return one of Textual's themes with what crewboard needs in addition: `info`, and grounds that are less bright.

    `key` and `bad` replace colours that cannot be read on each of these grounds.
    """
    of = BUILTIN_THEMES[name]
    bad, blend = bad or of.error or "", partial(_blend, of.background or "")
    return _theme(
        name, text=of.foreground or "", dim=blend(of.foreground, 0.82), trace=blend(of.foreground, 0.52),
        key=key or of.primary, need=of.warning or "", bad=bad, good=of.success or "", info=info,
        ground=of.background or "", surface=blend(of.foreground, 0.03), panel=blend(of.foreground, 0.06),
        frame=blend(of.foreground, 0.25), cursor=blend(of.primary, 0.12), added=blend(of.success, 0.15),
        deleted=blend(bad, 0.15), secondary=of.secondary, accent=of.accent,
    )  # fmt: skip


THEMES: dict[str, Theme] = {
    "dark": DARK,
    "light": LIGHT,
    "contrast": CONTRAST,
    "catppuccin-mocha": _adopted("catppuccin-mocha", "#89dceb"),
    "catppuccin-macchiato": _adopted("catppuccin-macchiato", "#91d7e3", bad="#f3a0ac"),
    "catppuccin-frappe": _adopted("catppuccin-frappe", "#99d1db", key="#cfa7e8", bad="#efaead"),
    "tokyo-night": _adopted("tokyo-night", "#7dcfff"),
}
"""The themes of crewboard by their names for users, in the order in which the theme key cycles through them."""


PREFIX = "crewboard-"
"""The start of the names under which Textual knows these themes; it has others of its own."""


def names(registered: Iterable[str]) -> list[str]:
    """Return the names of crewboard's themes as users write them, without `PREFIX`, in the order of `registered`."""
    return [name.removeprefix(PREFIX) for name in registered if name.startswith(PREFIX)]


_ROLES = {
    "text": ("foreground",),
    "dim": ("muted",),
    "trace": ("trace",),
    "key": ("primary", "accent", "frame-focus", "border"),
    "need": ("warning", "need"),
    "bad": ("error", "bad"),
    "good": ("success", "good"),
    "info": ("info",),
}
"""The roles that a user's theme can colour, with the fields and variables of a Textual theme that get the colour."""

_FILLS = ("need", "bad", "good")
"""The roles that can also be a ground, below text in the colour of the background."""

_BASE, _GROUND = "base", "ground"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
_LONGEST = 40
"""The most characters of a wrong value that are quoted."""
_DRAWN_LEAST, _TEXT_LEAST = 3.0, 4.5
_CODE_GROUNDS = ("background", "cursor-row", "add", "del")
_STEPS = 20
_LINEAR = 0.04045
"""The value of a primary colour, from 0 to 1, up to which its light grows linearly in sRGB."""


def read_theme(name: str, table: object) -> tuple[Theme | None, list[tuple[str, str]]]:
    """Return a theme of the user from its table in a file, or None with its faults.

    A fault is a name in the table, empty for the table itself, and what is wrong there.
    """
    if not _NAME.fullmatch(name) or name in THEMES:
        why = "there is a theme of that name" if name in THEMES else "use small letters, digits and -, at most 32"
        return None, [("", f"choose another name: {why}")]
    if not isinstance(table, Mapping) or str(table.get(_BASE)) not in THEMES:
        given = table.get(_BASE) if isinstance(table, Mapping) else None
        wrongly = f"there is no theme {str(given)[:_LONGEST]!r} to begin with; use " if given is not None else ""
        wrongly = wrongly or f"give the theme that it begins with: {_BASE} = "
        return None, [(_BASE, f"{wrongly}one of {', '.join(THEMES)}")]
    colours = {each: colour for each, colour in table.items() if each != _BASE}
    wrong: list[tuple[str, str]] = []
    for each, colour in colours.items():
        if each not in (*_ROLES, _GROUND):
            wrong.append((each, f"there is no colour {each}; they are {', '.join([*_ROLES, _GROUND])}"))
        elif not (isinstance(colour, str) and _COLOUR.fullmatch(colour)):
            wrong.append((each, f'{each}: give a colour as "#7aa2f7"'))
    if wrong:
        return None, wrong
    base = str(table[_BASE])
    theme = _coloured(THEMES[base], colours)
    least = float(theme.variables.get(_LEAST, _TEXT_LEAST))
    for role, why in _unreadable_roles(theme, least):
        cause = "" if role in colours else f"; the {_GROUND} {colours.get(_GROUND, '')} causes it, {role} is of {base}"
        wrong.append((role if role in colours else _GROUND, f"{why}{cause}"))
    return (None, wrong) if wrong else (replace(theme, name=f"{PREFIX}{name}"), [])


def likens_good_and_bad(theme: Theme, table: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the faults of a theme whose `good` is nearer to its base's `bad` than to its `good`, or the reverse.

    `table` is the theme's table in a settings file; it names the base. A fault is a role and what is wrong with it.
    """
    base = THEMES[table[_BASE]].variables
    wrong = []
    for role, other in (("good", "bad"), ("bad", "good")):
        colour = theme.variables[role]
        if _distance(colour, base[other]) < _distance(colour, base[role]):
            wrong.append(
                (role, f"{role} {colour} is nearer to {other} {base[other]} of {table[_BASE]} than to its {role}")
            )
    return wrong


def _distance(one: str, other: str) -> int:
    return sum((a - b) ** 2 for a, b in zip(Color.parse(one).rgb, Color.parse(other).rgb, strict=True))


def _coloured(base: Theme, colours: Mapping[str, str]) -> Theme:
    fields: dict[str, str] = {}
    variables = dict(base.variables)
    for role in _ROLES.keys() & colours.keys():
        for place in _ROLES[role]:
            (fields if hasattr(base, place) else variables)[place] = colours[role]
    if _GROUND in colours:
        fields["background"] = colours[_GROUND]
    theme = replace(base, **fields, variables=variables)  # type: ignore[arg-type]
    ground = Color.parse(theme.background or "")
    variables |= {f"on-{role}": ground.hex for role in _FILLS if role in colours}
    if _GROUND not in colours:
        return theme
    blend = partial(_blend, ground.hex)
    frame = blend(theme.foreground, 0.25)
    variables |= {
        "frame": frame,
        "border-blurred": frame,
        "cursor-row": blend(theme.primary, 0.12),
        "add": blend(theme.success, 0.12),
        "del": blend(theme.error, 0.12),
    }
    return replace(
        theme, surface=blend(theme.foreground, 0.03), panel=blend(theme.foreground, 0.06),
        dark=_contrast(ground, Color.parse("#ffffff")) > _contrast(ground, Color.parse("#000000")),
    )  # fmt: skip


def _luminance(colour: Color) -> float:
    """Return the relative luminance of a colour by WCAG 2.2, from 0 to 1."""
    red, green, blue = (
        part / 12.92 if part <= _LINEAR else ((part + 0.055) / 1.055) ** 2.4 for part in colour.normalized
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: Color, other: Color) -> float:
    return _ratio(_luminance(one), _luminance(other))


def _ratio(one: float, other: float) -> float:
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


def code_colour(role: str, colours: Mapping[str, str], shown: str | None) -> str:
    """Return the colour of a role for code; the colour of text if the role cannot be read on each ground of a diff.

    `colours` are those of a theme by their names, `shown` is the colour system of the terminal.
    """
    sent = {
        each: sent_as(colours[each], shown) if shown in _FEWER else colours[each] for each in (role, *_CODE_GROUNDS)
    }
    least = float(colours.get(_LEAST, _TEXT_LEAST))
    colour = Color.parse(sent[role])
    is_read = all(_contrast(colour, Color.parse(sent[ground])) >= least for ground in _CODE_GROUNDS)
    return colours[role if is_read else "foreground"]


def _unreadable_roles(theme: Theme, least: float) -> Iterator[tuple[str, str]]:
    """Yield each role whose colour has too little contrast on a ground, and why, with a colour that has enough."""
    variables = theme.variables
    grounds = {
        "the background": theme.background, "inputs": theme.surface, "panels": theme.panel,
        "the selected row": variables["cursor-row"], "added lines": variables["add"], "deleted lines": variables["del"],
    }  # fmt: skip
    for role, places in _ROLES.items():
        colour = Color.parse(getattr(theme, places[0], None) or variables[places[0]])
        needs = _DRAWN_LEAST if role == "trace" else least
        on = {
            where: Color.parse(ground or "")
            for where, ground in grounds.items()
            if (where == "the background" or role != "trace")
            and (where != "added lines" or role in ("text", "good", "info"))
            and (where != "deleted lines" or role in ("text", "bad", "info"))
        }
        where, worst = min(on.items(), key=lambda each: _contrast(colour, each[1]))
        if (ratio := _contrast(colour, worst)) < needs:
            towards = Color.parse("#ffffff" if theme.dark else "#000000")
            shades = (colour.blend(towards, step / _STEPS) for step in range(1, _STEPS + 1))
            better = next((each for each in shades if all(_contrast(each, at) >= needs for at in on.values())), None)
            shade = "lighter" if theme.dark else "darker"
            use = f"use {better.hex.lower()} or a {shade} one" if better else f"choose another {_GROUND}"
            # Rounded down: 4.47 is below 4.5, and has to look so.
            figures = f"{floor(100 * ratio) / 100:.2f} : 1 on {where}, {worst.hex.lower()}"
            yield role, f"{role} {colour.hex.lower()} has a contrast of {figures}, and needs {needs:g} : 1: {use}"


_FEWER = {"256": ColorSystem.EIGHT_BIT, "standard": ColorSystem.STANDARD}
"""The colour systems with fewer colours than a theme uses, by Rich's names."""

_PLAIN_GROUNDS = ("background", "surface", "panel")

_DARK_GROUNDS = ("#00005f", "#303030", "#262626", "#1c1c1c", "#121212", "#000000")
_LIGHT_GROUNDS = ("#d7ffff", "#e4e4e4", "#eeeeee", "#ffffff")
"""Grounds among 256 colours, for dark and light screens, on which texts are read well, the most visible first."""

_DIFF_GROUNDS = {True: ("#005f00", "#5f0000"), False: ("#d7ffd7", "#ffd7d7")}
"""The green and the red among 256 colours for the lines of a diff, on a dark screen and on a light one."""


def sent_as(colour: str, colours: str) -> str:
    """Return the colour that a terminal with the colour system `colours` (`256`, `standard`) shows for `colour`."""
    sent = SentColor.parse(colour.lower()).downgrade(_FEWER[colours])
    return sent.get_truecolor(DEFAULT_TERMINAL_THEME).hex


def for_terminal(theme: Theme, colours: str | None) -> Theme:
    """Return a theme for a terminal with fewer colours (`256`, `standard`); the same theme for any other terminal.

    Such a terminal shows the nearest colour that it has. Where that makes texts unreadable, the ground is replaced by
    one on which all texts can be read, text on a fill by black or white, and a role that is still unreadable by the
    colour of text. If possible, each ground looks different, so that the row of the cursor and the lines of a diff
    stand out.
    """
    if colours not in _FEWER:
        return theme
    least = float(theme.variables.get(_LEAST, _TEXT_LEAST))
    variables = dict(theme.variables)
    shown = {role: getattr(theme, places[0], None) or variables[places[0]] for role, places in _ROLES.items()}
    texts = shown.keys() - {"trace"}

    # Each of the few colours is compared with many: computed once, this takes a quarter of the time at the start.
    light = cache(lambda colour: _luminance(Color.parse(sent_as(colour, colours))))

    def contrast(one: str, other: str) -> float:
        return _ratio(light(one), light(other))

    def readable(grounds: Iterable[str], roles: Iterable[str], unlike: Iterable[str] = ()) -> str:
        """Return the first of the grounds on which all roles are read, else the one on which they are read best."""
        worst = {each: min(contrast(shown[role], each) for role in roles) for each in grounds}
        taken = {sent_as(each, colours) for each in unlike}
        read = [each for each, ratio in worst.items() if ratio >= least]
        apart = (each for each in read if sent_as(each, colours) not in taken)
        return next(apart, read[0] if read else max(worst, key=worst.__getitem__))

    grounds = _DARK_GROUNDS if theme.dark else _LIGHT_GROUNDS
    fields = {each: readable((getattr(theme, each) or "", *grounds[1:]), texts) for each in _PLAIN_GROUNDS}
    ground, (green, red) = fields["background"], _DIFF_GROUNDS[theme.dark]
    variables["cursor-row"] = readable((variables["cursor-row"], *grounds), texts, [ground])
    added = readable((green, variables["add"], *grounds[1:]), ("text", "good", "info"), [ground])
    variables["add"] = added
    variables["del"] = readable((red, variables["del"], *grounds[1:]), ("text", "bad", "info"), [ground, added])
    for role in _FILLS:
        shades = (variables[f"on-{role}"], "#000000", "#ffffff")
        variables[f"on-{role}"] = max(shades, key=lambda each: contrast(each, variables[role]))
    unreadable = [role for role in texts if contrast(shown[role], ground) < least]
    for place in (place for role in unreadable for place in _ROLES[role] if place not in _FILLS):
        (fields if hasattr(theme, place) else variables)[place] = theme.foreground or ""
    if contrast(variables["trace"], ground) < _DRAWN_LEAST:
        variables["trace"] = variables["muted"]
    return replace(theme, **fields, variables=variables)  # type: ignore[arg-type]


class SteadyStylesheet(Stylesheet):
    """A stylesheet that keeps its parsed rules.

    Textual parses all rules again for every screen that it shows for the first time: 6 ms each, three times before the
    first picture.
    """

    def set_variables(self, variables: dict[str, str]) -> None:
        if variables != self._variables:
            super().set_variables(variables)

    def reparse(self) -> None:
        self.parse()


class AsciiFilter(LineFilter):
    """Paints every line in ASCII."""

    # Colours stay as they are.
    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002
        """Return the same segments with their text in ASCII."""
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]
