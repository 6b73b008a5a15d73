"""Form fields of one row: a choice, a segmented control, radio buttons, a checkbox.

Textual 8.2.8 has such widgets, but a hire form of them does not fit into 24 rows. Measured at 80x24 with five types,
two modes, six checkboxes and a choice of ten: 32 rows with Textual's widgets, 14 if they are compact, 9 with these;
123 ms, 128 ms and 46 ms of processor time to show them.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.cells import cell_len
from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from crewboard_tui.keymap.bindings import bindings_of
from crewboard_tui.render.lines import ELLIPSIS, Span, one_line, rule_line, say
from crewboard_tui.widgets.painter import Painter


class Select(Widget, can_focus=True):
    """A field with one of several values. `options` are pairs of a value and the label that is shown for it."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("choice")]
    at: reactive[int] = reactive(0)

    class Changed(Message):
        """Sent when the value changed."""

    def __init__(self, options: Sequence[tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.options = list(options)
        self._painter = Painter(self)

    @property
    def value(self) -> str:
        """Return the chosen value."""
        return self.options[self.at][0]

    def choose(self, value: str) -> None:
        """Choose a value, if it is an option."""
        self.at = next((at for at, (each, _) in enumerate(self.options) if each == value), self.at)

    def offer(self, options: Sequence[tuple[str, str]]) -> None:
        """Offer other options; the chosen one stays if it is one of them, else the first is chosen."""
        if self.options != list(options):
            value, self.options = self.value, list(options)
            self.at = next((at for at, (each, _) in enumerate(self.options) if each == value), 0)
            self.refresh()

    def action_turn(self, by: int) -> None:
        self.at = (self.at + by) % len(self.options)

    def watch_at(self) -> None:
        self.post_message(self.Changed())

    def parts(self, width: int) -> list[tuple[Span, int]]:  # noqa: ARG002
        """Return what is shown in `width` cells: each piece with the index of the option that a click chooses."""
        before, after = ((self.at + by) % len(self.options) for by in (-1, 1))
        label = say(self.options[self.at][1], "bold" if self.has_focus else "")
        return [(Span("‹ ", "key"), before), (label, after), (Span(" ›", "key"), after)]

    def render_line(self, y: int) -> Strip:  # noqa: ARG002
        width = self.size.width
        return self._painter.strip(tuple(span for span, _ in self.parts(width)), width)

    def on_click(self, event: events.Click) -> None:
        end = 0
        for span, at in self.parts(self.size.width):
            end += cell_len(span.text)
            if event.x < end:
                self.at = at
                return


class Radio(Select):
    """A choice that shows every option."""

    def parts(self, width: int) -> list[tuple[Span, int]]:  # noqa: ARG002
        found: list[tuple[Span, int]] = []
        for at, (_, label) in enumerate(self.options):
            here = at == self.at
            mark = Span(("   " if at else "") + ("(•) " if here else "( ) "), "key")
            found += [(mark, at), (say(label, "bold" if here and self.has_focus else ""), at)]
        return found


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


_BOX = len("[x] ")


class Checkbox(Widget, can_focus=True):
    """A boolean field."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("tick")]
    value: reactive[bool] = reactive(default=False)

    class Changed(Message):
        """Sent when the value changed."""

    def __init__(self, label: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._label = label
        self._painter = Painter(self)

    def action_turn(self) -> None:
        self.value = not self.value

    def watch_value(self) -> None:
        self.post_message(self.Changed())

    def on_click(self) -> None:
        self.action_turn()

    def get_content_width(self, container: Size, viewport: Size) -> int:  # noqa: ARG002
        return cell_len(self._label) + _BOX

    def render_line(self, y: int) -> Strip:  # noqa: ARG002
        box = Span("[x] " if self.value else "[ ] ", "key")
        content = (box, Span(self._label, "bold" if self.has_focus else ""))
        return self._painter.strip(content, self.size.width)


class Section(Widget):
    """A rule above fields that answer one question."""

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question
        self._painter = Painter(self)

    def render_line(self, y: int) -> Strip:  # noqa: ARG002
        width = self.size.width
        return self._painter.strip(rule_line(self._question, "", (), 1, width, is_focused=False), width)


class Fold(Checkbox):
    """A rule that opens and closes a group of fields. While it is closed, it shows their values in short.

    `key` is how the key that opens and closes it is pressed: it is named at the end of the rule.
    """

    def __init__(self, label: str, key: str, **kwargs: Any) -> None:
        super().__init__(label, **kwargs)
        self._key = key
        self._short = ""

    def sum_up(self, text: str) -> None:
        """Set the short text of the values, which is shown while the fields are closed."""
        if text != self._short:
            self._short = text
            self.refresh()

    def render_line(self, y: int) -> Strip:  # noqa: ARG002
        width = self.size.width
        title = f"{'▾' if self.value else '▸'} {self._label}{'' if self.value else f': {self._short}'}"
        end = f"{self._key} {'closes' if self.value else 'opens'}"
        return self._painter.strip(rule_line(title, end, (), 1, width, is_focused=self.has_focus), width)
