"""Tables: rows in columns, some of which are left out where there is little room."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from crewboard_tui.render.lines import Align, Line, Span, clip_middle, pad

R = TypeVar("R")


class Column(Struct, Generic[R], frozen=True):
    """One column of a table whose rows are made from values of the type `R`.

    `cell` returns a span, which is filled or cut to `width` cells, a name in its middle; or a line of exactly that
    width. `has` returns True for a row that has something to show: a column without such rows is left out.
    """

    title: str
    width: int
    cell: Callable[[R], Span | Line]
    align: Align = "left"
    rank: int = 0
    """The rank in which columns are left out where there is little room: the highest first; 0 is never left out."""
    since: int = 0
    """The least width of the terminal at which the column is shown."""
    has: Callable[[R], bool] = lambda _: True
    is_name: bool = False
    label: Callable[[R], str] = lambda _: ""
    """Words behind a name, cut at their end so that the name is whole."""


def with_data(columns: Sequence[Column[R]], rows: Sequence[R]) -> list[Column[R]]:
    """Return the columns that have something to show in one of the rows."""
    return [column for column in columns if any(map(column.has, rows))]


def fit(columns: Sequence[Column[R]], width: int) -> list[Column[R]]:
    """Return the columns that fit into `width` cells, each with a blank after it.

    Columns with the rank 0 are returned even if they do not fit.
    """
    chosen = list(columns)
    while sum(column.width + 1 for column in chosen) > width and any(column.rank for column in chosen):
        chosen.remove(max(chosen, key=lambda column: column.rank))
    return chosen


def head(columns: Sequence[Column[R]], by: str = "", rest: str = "") -> Line:
    """Return the titles of columns, with a mark at the sort column `by`, and `rest` after them.

    Before them are two blanks, for the state of a row and its mark.
    """
    cells = [pad(column.title + ("⌄" if column.title == by else ""), column.width, column.align) for column in columns]
    return (Span("  " + " ".join([*cells, rest] if rest else cells), "dim"),)


def cells(columns: Sequence[Column[R]], row: R, tone: str = "") -> Line:
    """Return the cells of a row, each with a blank after it; `tone` is added to all."""
    spans: list[Span] = []
    for column in columns:
        cell = column.cell(row)
        if isinstance(cell, Span):
            text = cell.text
            if column.is_name:
                # A label of which only the ellipsis fits would say nothing, and without a blank it would cut the name.
                has_room = len(text) + len("_l…") <= column.width
                text = f"{text} {column.label(row)}".rstrip() if has_room else clip_middle(text, column.width)
            spans.append(Span(pad(text, column.width, column.align) + " ", f"{cell.tone} {tone}".strip()))
        else:
            spans += [*cell, Span(" ")]
    return tuple(spans)


def mark_span(*, marked: bool) -> Span:
    """Return the cell that shows whether a row is marked."""
    return Span("✓" if marked else " ", "marked")
