"""The models of all files and messages of a team.

No other module knows the names of their fields. A model keeps fields that it does not know, so that a file written by a
later version loses nothing when this version replaces it. Times are epoch seconds, sizes are bytes, paths are relative
to the team directory.
"""
