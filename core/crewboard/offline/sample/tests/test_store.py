import tempfile
import unittest
from pathlib import Path

from inkpot.store import NoSuchNote, Store


class StoreTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.store = Store(Path(scratch.name) / "notes")

    def test_a_note_that_was_added_can_be_read(self) -> None:
        number = self.store.add("hello").number
        self.assertEqual(self.store.get(number).text, "hello")

    def test_a_removed_note_is_gone(self) -> None:
        number = self.store.add("hello").number
        self.store.remove(number)
        with self.assertRaises(NoSuchNote):
            self.store.get(number)

    def test_a_number_is_never_given_twice(self) -> None:
        first = self.store.add("one").number
        self.store.remove(first)
        self.assertNotEqual(self.store.add("two").number, first)

    def test_recent_notes_come_newest_first(self) -> None:
        for number in range(1, 13):
            self.store.add(f"note {number}")
        titles = [note.title for note in self.store.recent(3)]
        self.assertEqual(titles, ["note 12", "note 11", "note 10"])
