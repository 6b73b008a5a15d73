"""The widgets of all views: lists with a cursor, foldable rows, texts, the lines around a view, form fields.

They paint lines that pure functions return; a view never paints by itself.
"""
