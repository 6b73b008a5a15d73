"""What an agent of type `lead` does with what the operator tells it, and with the mail of its team."""
