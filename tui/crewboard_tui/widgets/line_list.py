"""A scrolling list of lines with a cursor. Only changed rows are repainted, however long the list is."""

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from time import monotonic
from typing import Any, ClassVar, TypeVar, overload

from msgspec import Struct
from msgspec.structs import replace
from textual import events
from textual.binding import BindingType
from textual.geometry import Offset, Region
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from crewboard_tui.keymap.bindings import bindings_of
from crewboard_tui.render.lines import Line, Span, plain, width_of, wrap
from crewboard_tui.render.looks import LOOKS, SEEN_DEATH
from crewboard_tui.widgets.painter import Painter, Rule, set_height

BLIND_FOR = 0.3
"""Seconds during which keys ignore a row that moved under the cursor by itself (docs/reference/dashboard.md#laws)."""

SETTLE = 4.0
"""Seconds without a key press after which a list may be reordered."""

FLASH = 0.6
"""Seconds for which the glyph of a row is reversed after it changed."""

_SURE = frozenset({*string.printable, *(look.glyph for look in (*LOOKS.values(), SEEN_DEATH)), "✓", "…", "—"})
"""Characters that every terminal shows in one cell."""

_HEADS = {"state": "urgency", "agent": "name", "mem": "memory", "✉": "mail", "@": "mail"}
"""The sort keys of the columns whose heads are not the name of the sort key, by head; also by a head in ASCII."""

_LEFT = 1
"""The left button of a mouse."""

T = TypeVar("T")


class Order(Struct, frozen=True):
    """The order of a list: the name of a sort key, empty for a list that has none, and the direction."""

    by: str = ""
    reverse: bool = False


class Row(Struct, frozen=True):
    """A line of a list, and the key of the item that it shows; the key is empty if it shows none."""

    key: str
    line: Line


class LazyRows(Sequence[Row]):
    """The rows of a long list. A line is made only when its row is asked for."""

    def __init__(self, keys: list[str], line_of: Callable[[int], Line]) -> None:
        self.keys = keys
        self._line_of = line_of

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        return Row(self.keys[index], self._line_of(index))


def keep_order(before: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Return `wanted` in the order of `before`; new items come last."""
    here = set(wanted)
    known = set(before)
    return [key for key in before if key in here] + [key for key in wanted if key not in known]


def changed_cells(before: Line, now: Line) -> tuple[int, int] | None:
    """Return the first cell in which two lines look different, and the one after the last.

    None if all cells may: the lines differ in width, or a terminal may show the start of the line in other cells.
    """
    width = width_of(now)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, now, strict=False)))
    if width_of(before) != width or not _SURE.issuperset(plain(now[:same])):
        return None
    left = zip(reversed(before[same:]), reversed(now[same:]), strict=False)
    after = tuple(new for _, new in takewhile(lambda pair: pair[0] == pair[1], left))
    return width_of(now[:same]), width - width_of(after)


class _ListMessage(Message):
    """The base of a list's messages; `rows` is the list."""

    def __init__(self, rows: "LineList") -> None:
        super().__init__()
        self.rows = rows

    @property
    def control(self) -> "LineList":
        return self.rows


class LineList(ScrollView, can_focus=True):
    """A list whose cursor stays on its item when rows come, go or change their order.

    With `marks`, rows can be marked; `sorts` are the names of its sort keys, the default first. `chosen_by_key` is a
    sort key that the key for the reverse order switches on and off. Keys for functions that a list does not have are
    not offered.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("list", "marks", "sort", "wide")]

    class Moved(_ListMessage):
        """Sent when the cursor moved to another item."""

    class Opened(_ListMessage):
        """Sent when the item under the cursor is opened."""

        def __init__(self, rows: "LineList", key: str) -> None:
            super().__init__(rows)
            self.key = key

    class Marked(_ListMessage):
        """Sent when the marks have changed. The receiver must call `show` again, so that the rows show them."""

    class Reordered(_ListMessage):
        """Sent when the sort order or the columns changed. The receiver must call `show` again."""

    def __init__(
        self, *, marks: bool = False, sorts: Sequence[str] = (), chosen_by_key: str = "", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.rule = Rule(self)
        self._sorts = tuple(sorts)
        self._chosen_by_key = chosen_by_key
        self.order = Order(next(iter(self._sorts), ""))
        self.wide = False
        self._arranged: list[str] = []
        self._is_held = False
        """True if another order is due once the user does not move in the list."""
        self._touched_at = float("-inf")
        self._can_mark = marks
        self.marked: set[str] = set()
        """The keys of the marked rows, also of those that are not shown now."""
        self.moves = False
        """True if a glyph that changes is reversed for a moment."""
        self._glyphs: Mapping[str, str] = {}
        self._reversed: frozenset[str] = frozenset()
        """The keys of the rows whose glyphs are reversed now."""
        self.rows: Sequence[Row] = []
        """The rows of the list. Only `show` replaces them."""
        self.keys: list[str] = []
        """The keys of the rows."""
        self._painted: dict[int, Row] = {}
        """The rows as they were painted last, by their place in the list."""
        self._painter = Painter(self)
        self._line_width = 0
        self._at = 0
        self.selected: str | None = None
        """The key of the row under the cursor; None before there are rows, empty for a row without an item."""
        self._came_at = float("-inf")
        self._wanted: str | None = None
        self._pointed: int | None = None
        """The line below the pointer of the mouse, from the top of the list."""
        self.follows = False
        """True if the list can follow its end."""
        self.follow = False
        """True while the cursor goes to each new last row: only after the key for the end was pressed."""

    @property
    def came_by_itself(self) -> bool:
        """Return True if the row under the cursor has just changed without a key press."""
        return monotonic() - self._came_at < BLIND_FOR

    @property
    def head(self) -> Line | None:
        """Return the heads of the columns, which the rule above the list shows; None if it has none."""
        return self.rule.head

    @property
    def seen_keys(self) -> list[str]:
        """Return the keys of the rows that can be seen now."""
        top = self.scroll_offset.y
        return self.keys[top : top + self.size.height]

    @property
    def shown_marks(self) -> list[str]:
        """Return the keys of the marked rows that the list shows."""
        return [key for key in self.keys if key in self.marked] if self.marked else []

    @property
    def targets(self) -> list[str]:
        """Return the keys of the rows that an action is for: marked and shown, else the one under the cursor."""
        return self.shown_marks or ([self.selected] if self.selected else [])

    def unmark(self, keys: Iterable[str]) -> None:
        """Remove the marks of all shown rows, if one of these has a key in `keys`."""
        shown = set(self.shown_marks)
        if not shown.isdisjoint(keys):
            self.marked -= shown
            self.marks_changed()

    def marks_changed(self) -> None:
        """Notify the screen that the marks have changed."""
        self.post_message(self.Marked(self))
        self.screen.refresh_bindings()

    @property
    def copied(self) -> str:
        """Return the text of the marked lines, else of the one under the cursor; empty for a row without a key."""
        marked = [plain(self.rows[at].line).strip() for at, key in enumerate(self.keys) if key in self.marked]
        if marked:
            return "\n".join(marked)
        return plain(self.rows[self._at].line).strip() if self.selected else ""

    def show(self, rows: Sequence[Row], head: Line | None = None) -> None:
        """Show these rows, with the heads of their columns in the rule."""
        count, before_head, before_at = len(self.rows), self.head, self._at
        self.rows, self.rule.head = rows, head
        self.keys = rows.keys if isinstance(rows, LazyRows) else [row.key for row in rows]
        key = was = self.selected
        if self._wanted in self.keys:
            key, self._wanted = self._wanted, None
        # The rows of an empty list have no key: none of them is the last one.
        if self.follow and any(self.keys[-1:]):
            self._at = len(self.rows) - 1
        elif key in self.keys:
            self._at = self.keys.index(key)
        else:
            self._at = max(0, min(self._at, len(self.rows) - 1))
        self.selected = self.keys[self._at] if self.rows else None
        if self.rows and self.selected != was:
            if was and was not in self.keys:
                self._came_at = monotonic()
                self.set_timer(BLIND_FOR, self.refresh_bindings)
            self.post_message(self.Moved(self))
        set_height(self, len(rows))
        if before_head != head:
            self.rule.paint()
        if count != len(rows):
            self.refresh()
        else:
            top = self.scroll_offset.y
            shown = range(top, min(top + self.size.height, len(self.rows)))
            for y in shown:
                before, now = self._painted.get(y), self.rows[y]
                if before != now:
                    self._paint_row(y, changed_cells(before.line, now.line) if before is not None else None)
            for y in {before_at, self._at} if before_at != self._at else ():
                self._paint_row(y)
        self._keep_visible()

    def note_glyphs(self, glyphs: Mapping[str, str]) -> None:
        """Reverse for a moment the first glyph of each row whose glyph has changed since the last call.

        `glyphs` are by the keys of the rows.
        """
        if glyphs is self._glyphs:
            return
        before, self._glyphs = self._glyphs, glyphs
        changed = frozenset(key for key, glyph in glyphs.items() if before.get(key, glyph) != glyph)
        if changed and self.moves:
            self._reverse(self._reversed | changed, changed)
            self.set_timer(FLASH, lambda: self._reverse(self._reversed - changed, changed), name="motion")

    def _reverse(self, now: frozenset[str], changed: frozenset[str]) -> None:
        self._reversed = now
        for y, key in enumerate(self.seen_keys):
            if key in changed:
                # The cell behind that of the cursor.
                self.refresh(Region(1, y, 1, 1))

    def empty_rows(self, text: str) -> list[Row]:
        """Return the rows that an empty list shows: the text in the middle, broken after each `; `."""
        # Textual derives the width from all widgets above: once, and not for each line.
        width = self.row_width
        if not width:
            # Before the first layout.
            return []
        pieces = [piece for part in text.split("; ") for piece in wrap(part, width)]
        # A list that is as high as its rows would grow.
        above = 0 if self.styles.auto_dimensions else max(0, self.size.height - len(pieces)) // 2
        lines = [" " * ((width - width_of((Span(piece),))) // 2) + piece for piece in pieces]
        return [Row("", (Span(line, "dim"),)) for line in [""] * above + lines]

    def select(self, key: str | None) -> None:
        """Move the cursor to `key` if it is in the list."""
        if key in self.keys:
            self._wanted = None
            self._move(self.keys.index(key))

    def want(self, key: str) -> None:
        """Move the cursor to `key` as soon as it is in the list."""
        self._wanted = key
        self.select(key)

    def restart(self) -> None:
        """Put the cursor on the first row and stop following, for new content: no row counts as moved by itself."""
        self.selected, self._at = None, 0
        self.follow = False

    def _paint_row(self, index: int, cells: tuple[int, int] | None = None) -> None:
        """Paint a row; with `cells`, only those of its line from the first to before the second."""
        y = index - self.scroll_offset.y
        if 0 <= y < self.size.height:
            # The first cell shows the cursor.
            start, end = (0, self.size.width) if cells is None else (cells[0] + 1, cells[1] + 1)
            self.refresh(Region(start, y, end - start, 1))

    def render_lines(self, crop: Region) -> list[Strip]:
        # Textual derives the width from all widgets above: once, and not for each line.
        self._line_width = self.row_width + 1
        return self.rule.above(super().render_lines(crop), crop)

    def render_line(self, y: int) -> Strip:
        width = self._line_width
        index = y + self.scroll_offset.y
        if index >= len(self.rows):
            return self._painter.strip((), width)
        # One cursor on the screen, and none on the words of an empty list.
        here = index == self._at and self.has_focus and any(self.keys)
        under = "cursor" if here else "pointed" if y == self._pointed and self.keys[index] else ""
        mark = Span("▌" if here else " ", "key")
        row = self._painted[index] = self.rows[index]
        line = row.line
        if row.key in self._reversed and line:
            line = (replace(line[0], tone=f"{line[0].tone} reverse"), *line[1:])
        return self._painter.strip(line, width, under=under, before=(mark,))

    @property
    def row_width(self) -> int:
        """Return the cells for a row's line; the list's first cell shows the cursor."""
        return max(0, self.scrollable_content_region.width - 1)

    def watch_show_vertical_scrollbar(self) -> None:
        # A scrollbar that has just appeared does not know the scroll position yet.
        if self.show_vertical_scrollbar:
            self.vertical_scrollbar.position = self.scroll_y

    # ----------------------------------------------------------------------------------------------- order

    @property
    def is_sorted(self) -> bool:
        """Return True if the user chose another order than the default."""
        return self.order != Order(next(iter(self._sorts), ""))

    @property
    def state(self) -> str:
        """Return the chosen order and the number of marks, for the pane's title; empty by default."""
        order = f" · sort:{self.order.by}{' reversed' if self.order.reverse else ''}" if self.is_sorted else ""
        return order + marks_of(self)

    @property
    def has_more_columns(self) -> bool | None:
        """Return True if the list can show more columns, None if only on a wider terminal, False if it has no more."""
        return False

    @property
    def chosen_order(self) -> str:
        """Return the chosen order in one word, with `-` in front if it is reversed; empty for the default."""
        return f"{'-' * self.order.reverse}{self.order.by}" if self.is_sorted else ""

    def choose_order(self, chosen: str) -> None:
        """Set an order that `chosen_order` returned; an unknown sort key changes nothing."""
        by = chosen.removeprefix("-")
        if by in self._sorts:
            self.order = Order(by, reverse=chosen != by)

    def in_order(self, items: Iterable[T], name: Callable[[T], str], rank: Callable[[T], Any]) -> list[T]:
        """Return items by `rank` in the chosen direction; in the previous order while the user moves in the list.

        `name` returns the key of an item.
        """
        by_name = {name(item): item for item in sorted(items, key=rank)}
        wanted = list(by_name)[::-1] if self.order.reverse else list(by_name)
        moves = monotonic() - self._touched_at < SETTLE
        self._arranged = keep_order(self._arranged, wanted) if moves else wanted
        self._is_held = self._arranged != wanted
        return [by_name[each] for each in self._arranged]

    def reorder_now(self) -> None:
        """Apply a new order or filter at the next `in_order`, even while the user moves in the list."""
        self._touched_at = float("-inf")

    def on_key(self) -> None:
        self._touched_at = monotonic()

    def action_sort(self) -> None:
        self._reorder(Order(self._sorts[(self._sorts.index(self.order.by) + 1) % len(self._sorts)]))

    def action_reverse(self) -> None:
        if self._chosen_by_key:
            self._reorder(Order(self._sorts[0] if self.order.by == self._chosen_by_key else self._chosen_by_key))
        else:
            self._reorder(replace(self.order, reverse=not self.order.reverse))

    def action_wide(self) -> None:
        self.wide = not self.wide
        self._reorder(self.order)

    def _reorder(self, order: Order) -> None:
        self.order = order
        self.reorder_now()
        self.post_message(self.Reordered(self))
        self.screen.refresh_bindings()

    # ---------------------------------------------------------------------------------------------- moving

    def _move(self, at: int) -> None:
        at = max(0, min(at, len(self.rows) - 1))
        self._wanted = None
        self.follow = False
        if not self.rows or (at == self._at and self.selected == self.keys[at]):
            return
        old, self._at = self._at, at
        self.selected = self.keys[at]
        self._paint_row(old)
        self._paint_row(at)
        self._keep_visible()
        self.post_message(self.Moved(self))

    def _keep_visible(self) -> None:
        room = max(1, self.size.height)
        top = self.scroll_offset.y
        wanted = min(max(top, self._at - room + 1), self._at)
        if wanted != top:
            self.scroll_to(y=wanted, animate=False, force=True)

    def action_down(self) -> None:
        self._move(self._at + 1)

    def action_up(self) -> None:
        self._move(self._at - 1)

    def action_top(self) -> None:
        self._move(0)

    def action_bottom(self) -> None:
        self._move(len(self.rows) - 1)
        if self.follows:
            self.follow = True
            self.post_message(self.Moved(self))

    def action_page_down(self) -> None:
        self._move(self._at + max(1, self.size.height // 2))

    def action_page_up(self) -> None:
        self._move(self._at - max(1, self.size.height // 2))

    def action_mark(self) -> None:
        if self.selected:
            self.marked ^= {self.selected}
            self.marks_changed()
            self.action_down()

    def action_mark_all(self) -> None:
        shown = set(filter(None, self.keys))
        self.marked = set() if shown <= self.marked else shown
        self.marks_changed()

    def action_open(self) -> None:
        if self.selected is not None:
            self.post_message(self.Opened(self, self.selected))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        # None: the key is the list's own, and says that it does nothing now.
        if action in ("mark", "mark_all"):
            return self._can_mark and (bool(self.selected if action == "mark" else any(self.keys)) or None)
        if action in ("sort", "reverse"):
            return bool(self._sorts)
        if action == "wide":
            return self.has_more_columns
        return True if action != "open" or self.selected else None

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset(self)
        if at is None:
            if event.button == _LEFT and event.y == 0 and self.styles.padding.top:
                head = self.rule.word_at(event.x).lower()
                if (by := self._sorted_by(head)) is not None:
                    self._reorder(Order(by, reverse=by == self.order.by and not self.order.reverse))
            return
        index = at.y + self.scroll_offset.y
        if index < len(self.rows):
            again = index == self._at
            self._move(index)
            if event.chain > 1 and again:
                self.action_open()

    def _sorted_by(self, head: str) -> str | None:
        """Return the sort key of the column with this head; None if the list cannot be sorted by it."""
        named = {
            word: by for by in self._sorts for word in (by.lower(), *(w for w, each in _HEADS.items() if each == by))
        }
        # The head of the sort column has a mark behind it.
        return named.get(head) or named.get(head[:-1])

    def help_at(self, at: Offset) -> str:
        """Return what a click does at a place of the screen, if a head that sorts is there; else an empty text."""
        is_rule = at.y == self.region.y and bool(self.styles.padding.top)
        by = self._sorted_by(self.rule.word_at(at.x - self.region.x).lower()) if is_rule else None
        if by is None:
            return ""
        return f"a click sorts by {by}{', in the other direction' if by == self.order.by else ''}"

    def on_mouse_move(self, event: events.MouseMove) -> None:
        at = event.get_content_offset(self)
        self._point_at(at.y if at is not None else None)

    def on_leave(self) -> None:
        self._point_at(None)

    def _point_at(self, y: int | None) -> None:
        """Tint the row below the pointer."""
        if y != self._pointed:
            before, self._pointed = self._pointed, y
            for each in (before, y):
                if each is not None:
                    self._paint_row(each + self.scroll_offset.y)


def marks_of(rows: LineList) -> str:
    """Return how many rows are marked, and how many of them are not shown: ` · 3 marked (1 not shown)`.

    The text is empty without marks. Marked rows that are not shown are not acted on.
    """
    hidden = len(rows.marked) - len(rows.shown_marks)
    left_out = f" ({hidden} not shown)" if hidden else ""
    return f" · {len(rows.marked)} marked{left_out}" if rows.marked else ""
