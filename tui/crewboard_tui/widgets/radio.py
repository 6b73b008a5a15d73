"""One of a few, all in sight: `(•) background   ( ) foreground`."""

from textual.strip import Strip

from crewboard_tui.lines import Span, say
from crewboard_tui.widgets.choice import Choice


class Radio(Choice):
    """A choice that shows every option beside the others."""

    def render_line(self, y: int) -> Strip:  # noqa: ARG002
        spans: list[Span] = []
        for at, (_, label) in enumerate(self.options):
            here = at == self.at
            spans += [Span("(•) " if here else "( ) ", "key"), say(label, "bold" if here and self.has_focus else "")]
            spans.append(Span("   "))
        return self._painter.strip(tuple(spans), self.size.width)
