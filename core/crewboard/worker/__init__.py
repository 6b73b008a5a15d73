"""The code that runs inside an agent's process. No other package imports the Anthropic SDK."""
