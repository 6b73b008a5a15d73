"""The smallest images of each type that the API takes, and documents."""

import zlib

PDF = b"%PDF-1.7\n1 0 obj << /Type /Page >> endobj\n2 0 obj << /Type/Page >> endobj\n"


def chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def png(width: int = 1, height: int = 1) -> bytes:
    """Return a whole image if it is one pixel, else the header of one with little behind it."""
    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    header = chunk(b"IHDR", size + bytes([8, 0, 0, 0, 0]))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0\xff")) + chunk(b"IEND", b"")


def jpeg(width: int = 1, height: int = 1) -> bytes:
    frame = b"\xff\xc0\0\x0b\x08" + height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return b"\xff\xd8\xff\xe0\0\x10JFIF" + bytes(10) + b"\xff" + frame + bytes(20)


def gif(width: int = 1, height: int = 1) -> bytes:
    return b"GIF89a" + width.to_bytes(2, "little") + height.to_bytes(2, "little") + bytes(30)


def webp(width: int = 1, height: int = 1, kind: bytes = b"VP8 ") -> bytes:
    size = width.to_bytes(2, "little") + height.to_bytes(2, "little")
    bits = (width - 1) | (height - 1) << 14
    body = {
        b"VP8 ": b"\0\0\0\x9d\x01\x2a" + size,
        b"VP8L": b"\x2f" + bits.to_bytes(4, "little"),
        b"VP8X": bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little"),
    }[kind]
    return b"RIFF\x20\0\0\0WEBP" + kind + len(body).to_bytes(4, "little") + body + bytes(8)
