"""Images and documents that the API takes: their types by content, limits, an estimate of tokens, their blocks.

Journals and mailboxes only describe them. Their bytes are kept in the agent's folder, by SHA-256, and put
into a request when it is sent. The file-tool server imports this module, so it needs no other.
"""

import re
from collections.abc import Callable
from typing import Any

PDF = "application/pdf"

MAX_IMAGE = 3_750_000
"""Bytes of an image: 5 MB in base64, the API's limit."""

MAX_PDF = 8_000_000
"""Bytes of a document. A request may have 32 MB in base64, so that three fit."""

MAX_PAGES = 100
"""Pages of a document, the API's limit."""

IMAGE_TOKENS = 4_800
"""The most that an image takes; the API makes larger ones smaller."""

PAGE_TOKENS = 3_000
"""The most that a page of text takes, with its picture."""

_BYTES_A_PAGE = 50_000
_PAGE = re.compile(rb"/Type\s*/Page(?![a-zA-Z])")


def type_of(data: bytes) -> str | None:
    """Return the media type of what the API takes, by its first bytes; None for anything else."""
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
    """Return why the API does not take an image or a document; None if it does."""
    most = MAX_PDF if kind == PDF else MAX_IMAGE
    if len(data) > most:
        return (
            f"it has {len(data):,} bytes, and the limit for {kind} is {most:,}; make it smaller, or take a part of it"
        )
    if kind == PDF and pages(data) > MAX_PAGES:
        return f"it has {pages(data)} pages, and the limit is {MAX_PAGES}; take a part of it"
    return None


def pages(data: bytes) -> int:
    """Return how many pages a document has; an estimate where its objects are compressed."""
    return len(_PAGE.findall(data)) or -(-len(data) // _BYTES_A_PAGE)


def tokens(kind: str, data: bytes) -> int:
    """Return how many tokens an image or a document takes at most."""
    return pages(data) * PAGE_TOKENS if kind == PDF else IMAGE_TOKENS


def describe(name: str, kind: str, size: int) -> str:
    """Return an image or a document in a few words."""
    return f"{name}, {kind}, {max(1, round(size / 1000)):,} kB"


def block(name: str, kind: str, sha256: str, tokens: int) -> dict[str, Any]:
    """Return the block of an image or a document that is kept."""
    source = {"type": "kept", "name": name, "media_type": kind, "sha256": sha256, "tokens": tokens}
    return {"type": "document" if kind == PDF else "image", "source": source}


def is_kept(part: Any) -> bool:  # noqa: ANN401  any block
    """Return True for the block of an image or a document that is kept."""
    source = part.get("source") if isinstance(part, dict) else None
    return isinstance(source, dict) and source.get("type") == "kept"


def tokens_in(messages: list[dict[str, Any]]) -> int:
    """Return how many tokens the images and documents of a conversation take at most."""
    found = 0
    for message in messages:
        for part in message["content"]:
            inner = part.get("content")
            found += sum(
                each["source"]["tokens"]
                for each in (part, *(inner if isinstance(inner, list) else ()))
                if is_kept(each)
            )
    return found


def with_bytes(
    messages: list[dict[str, Any]], load: Callable[[str], bytes | None], *, images: bool = True, pdf: bool = True
) -> list[dict[str, Any]]:
    """Return a conversation with the bytes of its images and documents, as the API takes them.

    One whose bytes are gone, or whose type the model does not take, is a sentence instead.
    """

    def fill(part: dict[str, Any]) -> dict[str, Any]:
        inner = part.get("content")
        if isinstance(inner, list) and part.get("type") == "tool_result":
            return {**part, "content": [fill(each) for each in inner]}
        if not is_kept(part):
            return part
        source = part["source"]
        name, kind = source["name"], source["media_type"]
        if not (pdf if kind == PDF else images):
            return {"type": "text", "text": f"({name}: this model takes no {kind})"}
        data = load(source["sha256"])
        if data is None:
            return {"type": "text", "text": f"({name}: its content is no longer kept)"}
        # Most processes load this module, and few send media.
        from base64 import b64encode

        title = {"title": name} if kind == PDF else {}
        return {**part, **title, "source": {"type": "base64", "media_type": kind, "data": b64encode(data).decode()}}

    return [{**message, "content": [fill(part) for part in message["content"]]} for message in messages]
