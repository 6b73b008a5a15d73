"""The worker's calls of the model by the Messages API: prompt, context window, retries, reading of replies."""
