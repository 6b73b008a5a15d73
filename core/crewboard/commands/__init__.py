"""The commands that a user, a script or a lead gives to a team.

Functions are named to be called through their module, as in `messages.send` and `stop.remove`.
"""
