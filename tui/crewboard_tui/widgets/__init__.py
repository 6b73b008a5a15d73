"""The widgets of all views: lists with a cursor, foldable rows, texts, the lines around a view, form fields.

They paint lines that pure functions return; a view never paints by itself.
"""

from typing import TYPE_CHECKING

from crewboard.lazy import lazy

if TYPE_CHECKING:
    from crewboard_tui.widgets.bars import (
        VIEWS,
        Badges,
        StaticLines,
        alert_line,
        away_for,
        crumbs_line,
        follow_words,
        footer_lines,
        press,
        strip_line,
        tabs_line,
        title,
        working_keys,
    )
    from crewboard_tui.widgets.collapsible_list import MARK, CollapsibleList, CollapsibleRow
    from crewboard_tui.widgets.form import Checkbox, Radio, SegmentedControl, Select
    from crewboard_tui.widgets.line_list import LazyRows, LineList, Row, keep_order, marks_of
    from crewboard_tui.widgets.line_view import LineView
else:
    __getattr__ = lazy(
        __name__,
        {
            "bars": "Badges StaticLines VIEWS alert_line away_for crumbs_line follow_words footer_lines press "
            "strip_line tabs_line title working_keys",
            "collapsible_list": "CollapsibleList CollapsibleRow MARK",
            "form": "Checkbox Radio SegmentedControl Select",
            "line_list": "LazyRows LineList Row keep_order marks_of",
            "line_view": "LineView",
        },
    )

__all__ = [
    "MARK",
    "VIEWS",
    "Badges",
    "Checkbox",
    "CollapsibleList",
    "CollapsibleRow",
    "LazyRows",
    "LineList",
    "LineView",
    "Radio",
    "Row",
    "SegmentedControl",
    "Select",
    "StaticLines",
    "alert_line",
    "away_for",
    "crumbs_line",
    "follow_words",
    "footer_lines",
    "keep_order",
    "marks_of",
    "press",
    "strip_line",
    "tabs_line",
    "title",
    "working_keys",
]
