"""A list whose rows can be unfolded."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from msgspec import Struct
from textual.binding import BindingType

from crewboard_tui.keymap.bindings import bindings_of
from crewboard_tui.render.lines import Line, Span, matches, plain
from crewboard_tui.widgets.line_list import LazyRows, LineList, Row

MARK = 2
"""Cells before each line, for the mark of foldable rows."""

OLDER = "older"
"""The key of the first row if it says that older rows are not loaded."""

_INDENT = "  "


class CollapsibleRow(Struct, frozen=True):
    """One row: its line, lines that are always shown, and a function that returns the unfolded lines.

    `head` may be a function that makes the line when the row is first shown, for lists of thousands of rows. `texts`
    are the full text for searching and copying: parts, so that long ones are not kept twice.
    """

    key: str
    head: Line | Callable[[], Line]
    rest: tuple[Line, ...] = ()
    body: Callable[[], Sequence[Line]] | None = None
    texts: tuple[str, ...] = ()

    @property
    def line(self) -> Line:
        """Return the line of the row, made now if `head` is a function."""
        return self.head() if callable(self.head) else self.head

    @property
    def text(self) -> str:
        """Return the parts of the full text, each on a line of its own."""
        return "\n".join(filter(None, self.texts))

    def has(self, wanted: str) -> bool:
        """Return True if every word of `wanted` is in the row, folded or not."""
        return not wanted or matches(" ".join([*map(plain, (self.line, *self.rest)), self.text]), wanted)


class CollapsibleList(LineList):
    """A list of rows that fold. It can follow its end, until the cursor moves."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("folds")]

    def __init__(self, marks: tuple[str, str] = ("−", "+"), **kwargs: Any) -> None:
        """Mark unfolded and folded rows with `marks`."""
        super().__init__(**kwargs)
        self._marks = marks
        self._folds: Sequence[CollapsibleRow] = ()
        self._places: list[CollapsibleRow] = []
        """The row that each line belongs to."""
        self._made: dict[str, tuple[CollapsibleRow, bool, list[Line]]] = {}
        """The lines of the rows that were shown, by key, each with the row, and True if it was unfolded."""
        self._unfolded: set[str] = set()

    @property
    def copied(self) -> str:
        """Return the full text of the row under the cursor, for copying; empty if there is none."""
        return self._here.text if self._here is not None else ""

    @property
    def came_by_itself(self) -> bool:
        """Return False: keys here act on the page's agent, not on the row under the cursor."""
        return False

    def begin(self, *, follows: bool, unfolded: Iterable[str] = ()) -> None:
        """Start with new content: at its end if the list `follows` its end, else at its top.

        All rows are folded, except those with the keys `unfolded`.
        """
        self.restart()
        self._unfolded = set(unfolded)
        self.follows = self.follow = follows
        self.scroll_to(y=0, animate=False, force=True)

    def read(self, folds: Sequence[CollapsibleRow], nothing: str, head: Line | None = None) -> None:
        """Show these rows below the column heads `head`, or the text `nothing` if there are none but `OLDER`.

        The lines of a row are made when it is first shown, and are the same objects as long as the row is the same.
        """
        self._folds = folds
        keys: list[str] = []
        lines: list[tuple[CollapsibleRow, int]] = []
        made, self._made = self._made, {}
        for fold in folds:
            count = len(self._lines_of(fold, made)) if fold.rest or fold.key in self._unfolded else 1
            keys.append(fold.key)
            keys += [f"{fold.key}\n{at}" for at in range(1, count)]
            lines += [(fold, at) for at in range(count)]
        self._places = [fold for fold, _ in lines]
        indented = (Span(_INDENT), *head) if head is not None and folds else None

        def line_of(at: int) -> Line:
            fold, number = lines[at]
            return self._lines_of(fold, made)[number]

        rows: Sequence[Row] = LazyRows(keys, line_of)
        if all(fold.key == OLDER for fold in folds):
            rows = [*rows, *self.empty_rows(nothing)]
        self.show(rows, indented)

    def _lines_of(
        self, fold: CollapsibleRow, before: Mapping[str, tuple[CollapsibleRow, bool, list[Line]]]
    ) -> list[Line]:
        """Return the lines of a row, from `before` if they were made for the same row."""
        unfolded = fold.key in self._unfolded
        found, was_unfolded, lines = self._made.get(fold.key) or before.get(fold.key) or (None, False, [])
        if found is not fold or was_unfolded != unfolded:
            mark = Span(_INDENT) if fold.body is None else Span(f"{self._marks[not unfolded]} ", "key")
            below = fold.body() if fold.body is not None and unfolded else ()
            lines = [(mark, *fold.line), *((Span(_INDENT), *line) for line in (*fold.rest, *below))]
        self._made[fold.key] = fold, unfolded, lines
        return lines

    @property
    def _here(self) -> CollapsibleRow | None:
        return self._places[self._at] if self._at < len(self._places) else None

    @property
    def key_labels(self) -> Mapping[str, str]:
        """Return the labels, by id, of the keys that fold: for an unfolded row, and once all rows are unfolded."""
        here = self._here is not None and self._here.key in self._unfolded
        return {**({"fold.turn": "fold"} if here else {}), **({"fold.all": "fold all"} if self._is_whole else {})}

    @property
    def _can_unfold(self) -> set[str]:
        return {fold.key for fold in self._folds if fold.body is not None}

    @property
    def _is_whole(self) -> bool:
        """Return True if all rows that can be unfolded are."""
        return self._can_unfold <= self._unfolded

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "turn":
            return (self._here is not None and self._here.body is not None) or None
        if action == "turn_all":
            return any(fold.body is not None for fold in self._folds) or None
        if action == "follow":
            return self.follows or None
        return super().check_action(action, parameters)

    def action_open(self) -> None:
        self.action_turn()

    def action_turn(self) -> None:
        """Unfold the row under the cursor, or fold it."""
        if self._here is None or self._here.body is None:
            return
        key = self._here.key
        self.select(key)
        self._unfolded ^= {key}
        self._show_again()
        # The whole entry gets visible, or its first line is at the top.
        size = sum(place.key == key for place in self._places)
        top, room = self.scroll_offset.y, max(1, self.size.height)
        wanted = max(top, min(self._at, self._at + size - room))
        if wanted != top:
            self.scroll_to(y=wanted, animate=False, force=True)

    def action_turn_all(self) -> None:
        """Unfold all rows; fold all if they already are unfolded."""
        key = self._here.key if self._here else None
        self.select(key)
        self._unfolded = set() if self._is_whole else self._can_unfold
        self._show_again()
        self._keep_visible()

    def action_follow(self) -> None:
        """Switch following the end on or off."""
        if not self.follow:
            self.action_bottom()
        else:
            self.follow = False
            self.post_message(self.Moved(self))

    @property
    def whole_in_sight(self) -> set[str]:
        """Return the keys of the rows all of whose lines are on the screen."""
        top = self.scroll_offset.y
        shown = self._places[top : top + self.size.height]
        cut = [*self._places[:top], *self._places[top + len(shown) :]]
        return {fold.key for fold in shown} - {fold.key for fold in cut}

    def _show_again(self) -> None:
        # Stop following while an unfolded entry is being read.
        self.follow = False
        head = self.head[1:] if self.head is not None else None
        self.read(self._folds, "", head)
        self.screen.refresh_bindings()
        self.post_message(self.Moved(self))
