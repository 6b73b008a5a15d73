"""The tools that the model sees (contract § 4)."""
