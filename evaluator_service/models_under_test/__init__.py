"""Models under test: the user's models, each with the preprocessing that it brings."""
