"""What readers compute from a team's files: the state of agents, mail, costs, needs. Writes nothing."""
