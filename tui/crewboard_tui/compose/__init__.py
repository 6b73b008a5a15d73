"""Writing messages: parsing, drafts, input widgets."""
