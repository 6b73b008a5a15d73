"""Panes, one a file. Each is a pure function from what was read to lines, and a widget that paints them."""
