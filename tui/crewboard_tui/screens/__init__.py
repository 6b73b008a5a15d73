"""Screens, one `.py` and one `.tcss` each."""
