"""A choice on one line with its neighbours: `explore plan [code] test lead`."""

from collections.abc import Sequence

from rich.cells import cell_len

from crewboard_tui.render.lines import ELLIPSIS, Span, one_line
from crewboard_tui.widgets.form.select import Select

_CUT = len(f"{ELLIPSIS} ")


class SegmentedControl(Select):
    """A choice that shows as many options around the current one as fit."""

    def parts(self, width: int) -> list[tuple[Span, int]]:
        labels = [one_line(label) for _, label in self.options]
        tone = "key bold" if self.has_focus else "key"
        shown = around(labels, self.at, width)
        found = [(Span(f"{ELLIPSIS} ", "dim"), shown.start - 1)] * (shown.start > 0)
        for each in shown:
            here = each == self.at
            found += [(Span(f"[{labels[each]}]", tone) if here else Span(labels[each]), each), (Span(" "), each)]
        return found + [(Span(ELLIPSIS, "dim"), shown.stop)] * (shown.stop < len(labels))


def around(labels: Sequence[str], at: int, width: int) -> range:
    """Return the range of `labels` around index `at` that fits into `width` cells."""

    def fits(first: int, last: int) -> bool:
        cells = sum(cell_len(label) + 1 for label in labels[first : last + 1]) + len("[]") - 1
        return cells + _CUT * ((first > 0) + (last < len(labels) - 1)) <= width

    first = last = at
    while True:
        right, left = last + 1 < len(labels) and fits(first, last + 1), first > 0 and fits(first - 1, last)
        if right and (last - at <= at - first or not left):
            last += 1
        elif left:
            first -= 1
        else:
            return range(first, last + 1)
