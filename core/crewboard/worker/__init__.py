"""What runs inside an agent's process. Nothing else imports the Anthropic SDK."""
