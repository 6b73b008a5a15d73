"""What the embedded model knows to do: one function a rule, in one ordered table (`crewboard.offline.policy`)."""
