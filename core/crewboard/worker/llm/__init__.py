"""The worker's client of the Messages API."""
