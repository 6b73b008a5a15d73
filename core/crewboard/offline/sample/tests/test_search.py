import unittest

from inkpot.note import Note
from inkpot.render import line, listing
from inkpot.search import find

NOTES = [
    Note(1, "Ink\n\nblack, from the shop #shopping"),
    Note(2, "Shopping\n\nink and paper"),
    Note(3, "Ideas\n\na pot of ink"),
]


class FindTest(unittest.TestCase):
    def test_a_word_in_the_title_comes_first(self) -> None:
        self.assertEqual([note.number for note in find(NOTES, "ink")], [1, 3, 2])

    def test_capitals_do_not_matter(self) -> None:
        self.assertEqual(find(NOTES, "INK"), find(NOTES, "ink"))

    def test_every_word_must_be_there(self) -> None:
        self.assertEqual([note.number for note in find(NOTES, "ink pot")], [3])

    def test_a_hash_searches_tags_only(self) -> None:
        self.assertEqual([note.number for note in find(NOTES, "#shopping")], [1])


class RenderTest(unittest.TestCase):
    def test_a_line_shows_number_title_and_tags(self) -> None:
        self.assertEqual(line(NOTES[0]), "   1  Ink  #shopping")

    def test_a_long_line_is_cut(self) -> None:
        self.assertTrue(line(Note(1, "x" * 200)).endswith("…"))

    def test_nothing_found_says_so(self) -> None:
        self.assertEqual(listing([]), "no notes")
