"""Turn records into styled text. Needs no running Textual app."""
