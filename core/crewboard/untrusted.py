"""Untrusted text in a conversation: delimited, so that a model can tell it from instructions, and shortened.

Delimited text is included word for word. Both delimiters carry a code derived from author, type, id and text, so that
no text can contain its own closing delimiter.
"""

import hashlib
import re
from dataclasses import dataclass

_FENCED = re.compile(
    r'<mail from="(?P<author>[^"]*)" type="(?P<kind>[^"]*)" id="(?P<id>[^"]*)" fence="(?P<code>[0-9a-f]{16})">\n'
    r"(?P<text>.*?)\n"
    r'</mail fence="(?P=code)">',
    re.DOTALL,
)


@dataclass(frozen=True)
class UntrustedText:
    """One delimited text, parsed."""

    author: str
    kind: str
    id: str
    text: str


def delimit(author: str, kind: str, ident: str, text: str) -> str:
    """Wrap `text` in delimiters that name its author and the type of mail."""
    ident = ident.translate({ord('"'): "'", ord("\n"): " "})
    code = hashlib.sha256(f"{author}\0{kind}\0{ident}\0{text}".encode(errors="replace")).hexdigest()[:16]
    return f'<mail from="{author}" type="{kind}" id="{ident}" fence="{code}">\n{text}\n</mail fence="{code}">'


def undelimit(text: str) -> list[UntrustedText]:
    """Return every delimited text in `text`, in order."""
    return [UntrustedText(m["author"], m["kind"], m["id"], m["text"]) for m in _FENCED.finditer(text)]


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
