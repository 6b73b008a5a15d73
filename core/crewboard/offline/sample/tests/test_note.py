import unittest

from inkpot.note import Note, dump, parse


class NoteTest(unittest.TestCase):
    def test_the_title_is_the_first_line(self) -> None:
        self.assertEqual(Note(1, "# Shopping\n\nink, paper").title, "Shopping")

    def test_an_empty_note_has_a_title_too(self) -> None:
        self.assertEqual(Note(1, "").title, "(empty)")

    def test_tags_are_words_behind_a_hash(self) -> None:
        self.assertEqual(Note(1, "Buy ink #Shopping, not a#b").tags, {"shopping"})

    def test_what_is_written_is_read_again(self) -> None:
        note = Note(7, "two\nlines")
        self.assertEqual(parse(7, dump(note)), note)
