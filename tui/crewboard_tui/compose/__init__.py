"""Write to agents: the composer, the prompt line, their input, the syntax of a text, and unsent texts."""
