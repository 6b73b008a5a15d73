"""Jobs that must not block the screen, and the messages that report them."""
