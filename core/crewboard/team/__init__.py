"""The commands: everything that a person, a script or a lead agent can ask of a team.

A command writes what should be and rings the supervisor; the supervisor and the workers make it so.
"""
