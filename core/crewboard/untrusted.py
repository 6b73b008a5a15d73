"""Untrusted text in a conversation: delimited, so that a model can tell it from instructions, and shortened.

Mail is between `<mail ...>` marks. Files of the project, the role that a hirer gave, and results of tools are between
`<data ...>` marks. The text is included word for word. Both marks carry a code derived from a key of the run, author,
type, id and text, so that no text can contain its own closing mark or, without the key, a mark with a right code.
"""

import hashlib
import hmac
import re

from msgspec import Struct

_DELIMITED = (
    r'<{tag} from="(?P<author>[^"]*)" type="(?P<kind>[^"]*)" id="(?P<id>[^"]*)" fence="(?P<code>[0-9a-f]{{16}})">\n'
    r"(?P<text>.*?)\n"
    r'</{tag} fence="(?P=code)">'
)
_MAIL = re.compile(_DELIMITED.format(tag="mail"), re.DOTALL)
_DATA = re.compile(_DELIMITED.format(tag="data"), re.DOTALL)


class UntrustedText(Struct, frozen=True):
    """One delimited text, parsed. `whole` is the text with its marks."""

    author: str
    kind: str
    id: str
    text: str
    whole: str


def delimit(author: str, kind: str, ident: str, text: str, key: str = "") -> str:
    """Wrap the text of mail in marks that name its author and type. `key` is the run's."""
    return _delimit("mail", author, kind, ident, text, key)


def delimit_data(source: str, kind: str, ident: str, text: str, key: str) -> str:
    """Wrap a text that is no mail in marks that name where it comes from. `key` is the run's."""
    return _delimit("data", source, kind, ident, text, key)


def _delimit(tag: str, author: str, kind: str, ident: str, text: str, key: str) -> str:
    ident = ident.translate({ord('"'): "'", ord("\n"): " "})
    said = f"{author}\0{kind}\0{ident}\0{text}".encode(errors="replace")
    # Without a key: a journal of an earlier version. Its conversation stays word for word as it was sent.
    code = (hmac.digest(key.encode(), said, "sha256") if key else hashlib.sha256(said).digest()).hex()[:16]
    return f'<{tag} from="{author}" type="{kind}" id="{ident}" fence="{code}">\n{text}\n</{tag} fence="{code}">'


def undelimit(text: str) -> list[UntrustedText]:
    """Return every delimited mail in `text`, in order."""
    return [UntrustedText(m["author"], m["kind"], m["id"], m["text"], m[0]) for m in _MAIL.finditer(text)]


def undelimit_data(text: str) -> str:
    """Return the text between data marks; `text` itself if it has none around it."""
    found = _DATA.fullmatch(text)
    return text if found is None else found["text"]


def elide_middle(text: str, most: int, head: int | None = None) -> str:
    """Return `text`, or if it is longer than `most` characters, its start and its end.

    `head` is how many of these characters are of the start; half of them if it is None.
    """
    if len(text) <= most:
        return text
    head = most // 2 if head is None else head
    return f"{text[:head]}\n[{len(text) - most} characters left out]\n{text[len(text) - most + head :]}"


def without_surrogates(text: str) -> str:
    """Return `text` with `?` for each half of a surrogate pair, which UTF-8 and the API cannot express."""
    return text.encode("utf-8", "replace").decode()
