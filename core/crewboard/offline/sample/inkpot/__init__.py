"""Notes as plain files."""

from inkpot.note import Note
from inkpot.store import Store

__all__ = ["Note", "Store"]
