"""Text for the screen and the command line, as plain data: lines of spans with tones, numbers in short form, glyphs.

Nothing here needs a running Textual app, and nothing but `themes` loads Textual. All text of agents is made safe here.
"""
