"""Reusable widgets. Most have a pure function that returns lines, and a widget that paints them."""
