"""Shortening of text."""


def elide_middle(text: str, most: int, head: int | None = None) -> str:
    """Return `text`, or if it is longer than `most` characters, its start and its end.

    `head` is how many of these characters are of the start; half of them if it is None.
    """
    if len(text) <= most:
        return text
    head = most // 2 if head is None else head
    return f"{text[:head]}\n[{len(text) - most} characters left out]\n{text[len(text) - most + head :]}"
