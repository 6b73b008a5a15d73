"""Turn records into styled text. No running Textual app is needed."""
