"""The history of the composer: the texts sent last, which the arrow keys show again."""

import logging
from pathlib import Path

from crewboard import CrewboardError, redaction
from crewboard.records.messages import RecentTexts
from crewboard.store import files, json_records
from crewboard.store.layout import key_of

log = logging.getLogger(__name__)

SENT_KEPT = 100
"""Number of the texts sent last that are kept."""

_SENT_SIZE = 64 * 1024
"""Characters that they may have together."""


class SentTexts:
    """The texts sent last from all dashboards of one team, oldest first; without a file, only from this dashboard."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self.texts: list[str] = []
        if file is not None:
            try:
                kept = json_records.load_or_none(key_of(file), RecentTexts)
            except CrewboardError as error:
                log.warning("the texts sent last cannot be read: %s", error)
            else:
                self.texts = list(kept.texts) if kept is not None else []

    def add(self, text: str) -> None:
        """Add a text as the newest one. A text that contains an API key is never written to the file."""
        self.texts = _newest([*self.texts, text])
        if self._file is None or redaction.redact(text) != text:
            return
        try:
            files.make_private_folders(self._file.parent)
            json_records.change(
                key_of(self._file),
                key_of(self._file.parent / "lock"),
                RecentTexts,
                lambda old: RecentTexts(texts=_newest([*(old.texts if old else []), text])),
                replace_damaged=True,
            )
        except (CrewboardError, OSError) as error:
            log.warning("the texts sent last are not kept: %s", error)


def _newest(texts: list[str]) -> list[str]:
    """Return the newest texts within the size limits, without duplicates."""
    found: list[str] = []
    room = _SENT_SIZE
    for text in reversed(texts):
        if text not in found and len(text) <= room and len(found) < SENT_KEPT:
            found.append(text)
            room -= len(text)
    return found[::-1]
