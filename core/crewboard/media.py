"""Images and documents for the API: their types by content, limits, an estimate of tokens, and their content blocks.

Journals and mailboxes only describe them. Their bytes are kept in the agent's folder, named by SHA-256, and are put
into a request when it is sent. The file-tool server imports this module, so it imports no other one.
"""

import contextlib
import re
import struct
from collections.abc import Callable, Collection, Mapping
from typing import Any

PDF = "application/pdf"

MAX_IMAGE = 3_750_000
"""Most bytes of an image: 5 MB in base64, the API's limit."""

MAX_PDF = 8_000_000
"""Most bytes of a document. A request may have 32 MB in base64, so three documents fit."""

MAX_PAGES = 100
"""Most pages of a document, the API's limit."""

MAX_PIXELS = 8_000
"""Most pixels on each edge of an image. This, the next two numbers, and that a document may have no password, are from
the API's pages `build-with-claude/vision` and `pdf-support` (November 2026).
"""

MANY_IMAGES = 20
MAX_PIXELS_OF_MANY = 2_000
"""Most pixels on an edge of each image of a request that has more than `MANY_IMAGES` images."""

IMAGE_TOKENS = 4_800
"""The most tokens that an image takes; the API makes larger images smaller."""

PAGE_TOKENS = 3_000
"""The most tokens that a page of text takes, with its picture."""

_BYTES_A_PAGE = 50_000
_PAGE = rb"/Type\s*/Page(?![a-zA-Z])"
_ENCRYPTED = rb"/Encrypt\s*(?:\d+\s+\d+\s+R|<<)"
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of JPEG that are followed by the size of the image."""
_JPEG_FILL = 0xFF
_JPEG_ALONE = 0x01
"""A marker of JPEG without a length behind it."""
_MANY_REASON = (
    f"it has more than {MAX_PIXELS_OF_MANY} pixels on an edge, and there are more than {MANY_IMAGES} images; make it "
    "smaller to see it again"
)


def type_of(data: bytes) -> str | None:
    """Return the media type of an image or a document by its first bytes; None for data that the API does not take."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return PDF if data.startswith(b"%PDF-") else None


def refusal(kind: str, data: bytes) -> str | None:
    """Return why the API does not take an image or a document of the media type `kind`; None if it does."""
    most = MAX_PDF if kind == PDF else MAX_IMAGE
    if len(data) > most:
        return (
            f"it has {len(data):,} bytes, and the limit for {kind} is {most:,}; make it smaller, or take a part of it"
        )
    if kind == PDF:
        if pages(data) > MAX_PAGES:
            return f"it has {pages(data)} pages, and the limit is {MAX_PAGES}; take a part of it"
        return "it is encrypted; save it without a password" if re.search(_ENCRYPTED, data) else None
    if (size := pixels(kind, data)) is None:
        return f"it begins like {kind}, but it is broken or cut off; write it again"
    if max(size) > MAX_PIXELS:
        return f"it has {size[0]} × {size[1]} pixels, and the limit is {MAX_PIXELS} on each edge; make it smaller"
    return None


def pixels(kind: str, data: bytes) -> tuple[int, int] | None:
    """Return the width and the height of an image, as its header says; None if the header is broken or cut off.

    A PNG must also have its end. In the other formats, data missing after the header is not noticed.
    """
    # Most processes load this module, and few look at images.
    from zlib import crc32

    width = height = 0
    # Of a file that is cut off, the header or the end is missing.
    with contextlib.suppress(IndexError, struct.error):
        match kind:
            case "image/png" if data[8:16] == b"\0\0\0\rIHDR" and b"IDAT" in data and b"IEND" in data:
                width, height, checksum = struct.unpack_from(">II5xI", data, 16)
                if checksum != crc32(data[12:29]):
                    return None
            case "image/gif":
                width, height = struct.unpack_from("<HH", data, 6)
            case "image/jpeg":
                at = 2
                while data[at] == _JPEG_FILL:
                    marker = data[at + 1]
                    length, *size = struct.unpack_from(">HxHH", data, at + 2)
                    if marker in _JPEG_FRAMES:
                        height, width = size
                        break
                    at += 1 if marker == _JPEG_FILL else 2 if marker == _JPEG_ALONE else 2 + length
            case "image/webp" if data[12:16] == b"VP8X":
                (bits,) = struct.unpack_from("<Q", data, 22)
                width, height = (bits >> 16 & 0xFFFFFF) + 1, (bits >> 40) + 1
            case "image/webp" if data[12:16] == b"VP8L" and data[20:21] == b"\x2f":
                (bits,) = struct.unpack_from("<I", data, 21)
                width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
            case "image/webp" if data[12:16] == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
                width, height = (each & 0x3FFF for each in struct.unpack_from("<HH", data, 26))
    return (width, height) if width and height else None


def pages(data: bytes) -> int:
    """Return the number of pages of a document; an estimate if its objects are compressed."""
    return len(re.findall(_PAGE, data)) or -(-len(data) // _BYTES_A_PAGE)


def tokens(kind: str, data: bytes) -> int:
    """Return how many tokens an image or a document takes at most."""
    return pages(data) * PAGE_TOKENS if kind == PDF else IMAGE_TOKENS


def describe(name: str, kind: str, size: int) -> str:
    """Return an image or a document in a few words: name, media type and size. `size` is in bytes."""
    return f"{name}, {kind}, {max(1, round(size / 1000)):,} kB"


def block(name: str, kind: str, sha256: str, tokens: int) -> dict[str, Any]:
    """Return the block that stands in a journal for an image or a document, with a SHA-256 in place of the bytes."""
    source = {"type": "kept", "name": name, "media_type": kind, "sha256": sha256, "tokens": tokens}
    return {"type": "document" if kind == PDF else "image", "source": source}


def is_kept(part: Any) -> bool:  # noqa: ANN401  any block
    """Return True for a block that `block` made: of an image or a document whose bytes are kept."""
    source = part.get("source") if isinstance(part, dict) else None
    return isinstance(source, dict) and source.get("type") == "kept"


def kept_in(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the blocks of all kept images and documents of a conversation and of its tool results, oldest first."""
    parts = [part for message in messages for part in message["content"]]
    inner = [(part, *(inside if isinstance(inside := part.get("content"), list) else ())) for part in parts]
    return [each for group in inner for each in group if is_kept(each)]


def tokens_in(messages: list[dict[str, Any]]) -> int:
    """Return how many tokens the kept images and documents of a conversation take at most."""
    return sum(each["source"]["tokens"] for each in kept_in(messages))


_TAKES_NONE = (
    r"(?i)not (?:a )?(?:support|multimodal|vision|enabled)|unsupported|only supported|support image input|text[- ]only|"
    r"at most 0|mmproj|unknown variant|not accept"
)
_PATH = r"messages\.(\d+)\.content\.(\d+)(?:(?:\.tool_result)?\.content\.(\d+))?"
"""The place of a block in the API's error message, or in the `paths` of its error `image_dimensions_too_large`, as the
SDK describes it since version 2.14.
"""


def takes_none(error: str) -> bool:
    """Return True if an error of the API says that the model takes no images at all, not only none of this format."""
    return re.search(_TAKES_NONE, error) is not None and "format" not in error.lower()


def refused_by(error: str, messages: list[dict[str, Any]], accepted: Collection[str]) -> list[dict[str, Any]]:
    """Return the blocks of the images and documents that an error of the API refuses; empty if there are none.

    If the error names places, they are the blocks there. Else it is the newest one whose SHA-256 is not in `accepted`,
    else the newest one.
    """
    kept, found = kept_in(messages), []
    for match in re.finditer(_PATH, error):
        turn, place, within = (int(each or 0) for each in match.groups())
        for block in messages[turn]["content"][place : place + 1] if turn < len(messages) else ():
            # A result has texts between its images.
            inner = block.get("content")
            named = inner[within : within + 1] if isinstance(inner, list) else [block]
            found += [
                each
                for each in (kept_in([{"content": named}]) or kept_in([{"content": [block]}]))[:1]
                if each not in found
            ]
    new = [each for each in kept if each["source"]["sha256"] not in accepted]
    return found or (new or kept)[-1:]


def _replaced(part: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Return a block in which `change` has replaced each kept image or document that it is or contains."""
    inner = part.get("content")
    if isinstance(inner, list) and part.get("type") == "tool_result":
        return {**part, "content": [_replaced(each, change) for each in inner]}
    return change(part) if is_kept(part) else part


def without(part: dict[str, Any], left_out: Mapping[str, str]) -> dict[str, Any]:
    """Return a block in which a sentence replaces each kept image or document that is left out.

    `left_out` has the reasons by SHA-256.
    """

    def said(kept: dict[str, Any]) -> dict[str, Any]:
        why = left_out.get(kept["source"]["sha256"])
        return kept if why is None else {"type": "text", "text": f"({kept['source']['name']}: {why})"}

    return _replaced(part, said)


def with_bytes(
    messages: list[dict[str, Any]], load: Callable[[str], bytes | None], *, images: bool = True, pdf: bool = True
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return a conversation for the API, with the bytes of its images and documents, and those that must be left out.

    `load` returns the bytes for a SHA-256, None if they are gone. The second result has the reasons by SHA-256: the
    bytes are gone, the model does not take the type (`images`, `pdf`), or the image is too large among many.
    """
    lost: dict[str, str] = {}
    are_many = sum(each["type"] == "image" for each in kept_in(messages)) > MANY_IMAGES

    def fill(part: dict[str, Any]) -> dict[str, Any]:
        name, kind, sha256 = (part["source"][each] for each in ("name", "media_type", "sha256"))
        data = load(sha256)
        if not (pdf if kind == PDF else images):
            lost[sha256] = f"this model takes no {kind}"
        elif data is None:
            lost[sha256] = "its content is no longer kept"
        elif are_many and kind != PDF and max(pixels(kind, data) or (0,)) > MAX_PIXELS_OF_MANY:
            lost[sha256] = _MANY_REASON
        if data is None or sha256 in lost:
            return part
        # Most processes load this module, and few send media.
        from base64 import b64encode

        title = {"title": name} if kind == PDF else {}
        return {**part, **title, "source": {"type": "base64", "media_type": kind, "data": b64encode(data).decode()}}

    return [
        {**message, "content": [_replaced(part, fill) for part in message["content"]]} for message in messages
    ], lost
