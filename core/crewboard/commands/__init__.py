"""What a user, a script or a lead agent can do to a team. Commands write files and wake the supervisor."""
