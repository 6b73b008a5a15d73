"""The commands that a user, a script or a lead gives to a team.

Each module is a namespace (`messages.send`, `stop.remove`).
"""
