"""Rules over the team's files that several processes share."""
