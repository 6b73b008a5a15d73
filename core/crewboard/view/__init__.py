"""What readers fold out of the files; nothing here writes."""
