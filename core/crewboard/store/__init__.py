"""How things get to disk and back. The only code that touches a team's files."""
