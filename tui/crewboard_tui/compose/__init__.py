"""Write to agents: the composer, the prompt line, their input, and the syntax of a text."""
