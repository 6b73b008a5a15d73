"""The stylesheet, which is parsed anew only where its colours change."""

from textual.css.stylesheet import Stylesheet


class SteadyStylesheet(Stylesheet):
    """A stylesheet that keeps what it parsed.

    Textual parses everything again for every screen that it shows for the first time: 6 ms each, three times before
    the first picture.
    """

    def set_variables(self, variables: dict[str, str]) -> None:
        if variables != self._variables:
            super().set_variables(variables)

    def reparse(self) -> None:
        self.parse()
