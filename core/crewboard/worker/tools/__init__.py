"""The tools that agents call (docs/reference/tools.md), and what runs them."""
