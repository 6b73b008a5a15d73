"""Text of others inside a conversation: word for word, between two marks that the text cannot forge.

The mark carries a code that is derived from the message's id and text, so no text can hold its own closing mark.
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
    """One piece of fenced text, taken apart again."""

    author: str
    kind: str
    id: str
    text: str


def delimit(author: str, kind: str, ident: str, text: str) -> str:
    """Wrap `text` with who wrote it and what kind of mail it is."""
    ident = ident.translate({ord('"'): "'", ord("\n"): " "})
    code = hashlib.sha256(f"{author}\0{kind}\0{ident}\0{text}".encode(errors="replace")).hexdigest()[:16]
    return f'<mail from="{author}" type="{kind}" id="{ident}" fence="{code}">\n{text}\n</mail fence="{code}">'


def undelimit(text: str) -> list[UntrustedText]:
    """Find every piece of fenced text, in order."""
    return [UntrustedText(m["author"], m["kind"], m["id"], m["text"]) for m in _FENCED.finditer(text)]
