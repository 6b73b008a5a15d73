"""A choice with all options visible: `(•) background   ( ) foreground`."""

from crewboard_tui.render.lines import Span, say
from crewboard_tui.widgets.form.select import Select


class Radio(Select):
    """A choice that shows every option."""

    def parts(self, width: int) -> list[tuple[Span, int]]:  # noqa: ARG002
        found: list[tuple[Span, int]] = []
        for at, (_, label) in enumerate(self.options):
            here = at == self.at
            mark = Span(("   " if at else "") + ("(•) " if here else "( ) "), "key")
            found += [(mark, at), (say(label, "bold" if here and self.has_focus else ""), at)]
        return found
