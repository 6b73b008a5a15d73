"""Agent types: what each type may do. The built-in ones, and a project's own."""
