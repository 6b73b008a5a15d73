"""The pages of requests: of a plan, a permission or a review, and of a question."""
