"""The worker's side of the Messages API."""
