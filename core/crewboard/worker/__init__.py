"""The code that runs in the worker, the process of an agent. No other package imports the Anthropic SDK."""
