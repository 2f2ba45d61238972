"""Models under test: the user's models, each with its own preprocessing."""
