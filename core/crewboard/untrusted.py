"""Untrusted text: delimited in a conversation, shortened, and with marks for characters that a reader would not see.

A model has to tell it from instructions, and the user has to see all of it. Mail is between `<mail ...>` marks. Files
of the project, the role that a hirer gave, and results of tools are between `<data ...>` marks. The text itself is
unchanged. Both marks carry a code, made from a key of the run, the author, the type, the id and the text. So a text
cannot contain its own closing mark or, without the key, a mark with a valid code.
"""

import hashlib
import hmac
import re
import unicodedata

from msgspec import Struct

_DELIMITED = (
    r'(?s)<{tag} from="(?P<author>[^"]*)" type="(?P<kind>[^"]*)" id="(?P<id>[^"]*)" fence="(?P<code>[0-9a-f]{{16}})">\n'
    r"(?P<text>.*?)\n"
    r'</{tag} fence="(?P=code)">'
)
_MAIL = _DELIMITED.format(tag="mail")
_DATA = _DELIMITED.format(tag="data")

_UNSEEN = (
    # What shows nothing, or breaks lines, although it is no control character.
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2028\u2029\u2065\u2800\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U00013439-\U00013446\U00016fe4\U0001d159\U000e0000-\U000e0fff"
    # What strikes out, covers or encloses the character before it.
    "\u0334-\u0338\u0488\u0489\u1abe\u1cd4\u1ce2-\u1ce8\u20d2\u20d3\u20d8-\u20da\u20dd-\u20e0\u20e2-\u20e6\u20ea\u20eb"
    "\ua670-\ua672\U00010a39\U00016af0-\U00016af4\U0001bc9e\U0001d167-\U0001d169"
    # Code points that are no characters and never will be.
    f"\ufdd0-\ufdef{''.join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))}]"
)
_SUSPECT = re.compile(r"[^\x20-\x7e\n\t]")

_ALIKE = r"[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000\u037e\u1fef\u212a]"
"""Blanks that do not separate the words of a command, and Unicode's second ; ` and K."""

_EMOJI = "\ufe0f"
_KEYCAP = "\u20e3"
_KEYS = frozenset("0123456789#*")


class UntrustedText(Struct, frozen=True):
    """One delimited text, parsed: the author, type and id in its mark, and the text. `whole` includes the marks."""

    author: str
    kind: str
    id: str
    text: str
    whole: str


def delimit(author: str, kind: str, ident: str, text: str, key: str = "") -> str:
    """Return a message between marks that name its author, type and id. `key` is that of the run.

    Without a key, the result is as in journals of earlier versions.
    """
    return _delimit("mail", author, kind, ident, text, key)


def delimit_data(source: str, kind: str, ident: str, text: str, key: str) -> str:
    """Return a text that is no message between marks that name its source, type and id. `key` is that of the run."""
    return _delimit("data", source, kind, ident, text, key)


def _delimit(tag: str, author: str, kind: str, ident: str, text: str, key: str) -> str:
    ident = ident.translate({ord('"'): "'", ord("\n"): " "})
    said = f"{author}\0{kind}\0{ident}\0{text}".encode(errors="replace")
    # Without a key: a journal of an earlier version. Its conversation stays word for word as it was sent.
    code = (hmac.digest(key.encode(), said, "sha256") if key else hashlib.sha256(said).digest()).hex()[:16]
    return f'<{tag} from="{author}" type="{kind}" id="{ident}" fence="{code}">\n{text}\n</{tag} fence="{code}">'


def undelimit(text: str) -> list[UntrustedText]:
    """Return every delimited message in `text`, in order."""
    return [UntrustedText(m["author"], m["kind"], m["id"], m["text"], m[0]) for m in re.finditer(_MAIL, text)]


def undelimit_data(text: str) -> str:
    """Return the text between data marks; `text` itself if it is not in such marks."""
    found = re.fullmatch(_DATA, text)
    return text if found is None else found["text"]


def elide_middle(text: str, most: int, head: int | None = None) -> str:
    """Return `text`; if it is longer than `most` characters, its beginning and end, with a note between them.

    `head` is how many of the `most` characters are from the beginning; None is half of them.
    """
    if len(text) <= most:
        return text
    head = most // 2 if head is None else head
    return f"{text[:head]}\n[{len(text) - most} characters left out]\n{text[len(text) - most + head :]}"


def without_surrogates(text: str) -> str:
    """Return `text` with `?` for each half of a surrogate pair, which UTF-8 and the API cannot express."""
    return text.encode("utf-8", "replace").decode()


def visible(text: str) -> str:
    """Return `text` with a visible mark for each character that cannot be seen or that hides another one.

    These are control characters except newline and tab, characters without a picture, and those private to a font.
    """
    if text.isprintable() and (text.isascii() or re.search(_UNSEEN, text) is None):
        return text
    return _SUSPECT.sub(_mark, text)


def as_run(text: str) -> str:
    """Return a command or a name of a file or branch with marks for blanks that shells do not treat as blanks.

    Characters that look exactly like a semicolon, a backtick or a K get marks as well. In prose such blanks are
    ordinary, as before a French colon and in Japanese, so `visible` leaves them.
    """
    return text if text.isascii() else re.sub(_ALIKE, _by_number, text)


def on_one_line(text: str) -> str:
    """Return a text on one line with the marks of `as_run`, and with marks for its line breaks and tabs."""
    return as_run(text).replace("\n", " ␊ ").replace("\t", "␉")


def _by_number(found: re.Match[str]) -> str:
    return f"<U+{ord(found[0]):04X}>"


def _mark(found: re.Match[str]) -> str:
    character = found[0]
    if character < " ":
        return chr(0x2400 + ord(character))
    if character == "\x7f":
        return "\u2421"
    if character in (_EMOJI, _KEYCAP) and _is_part_of_emoji(found):
        return character
    if re.match(_UNSEEN, character) or unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co"):
        return _by_number(found)
    return character


def _is_part_of_emoji(found: re.Match[str]) -> bool:
    """Return True if a selector or keycap makes an emoji of the symbol before it. More selectors could hide a text."""
    before, after = found.string[found.start() - 1 : found.start()], found.string[found.end() : found.end() + 1]
    if found[0] == _KEYCAP:
        return before == _EMOJI or before in _KEYS
    # A sign of ASCII is no emoji: in a command it may be an operator, and a diff begins its lines with one.
    return after == _KEYCAP or (not before.isascii() and unicodedata.category(before) in ("So", "Sm"))
