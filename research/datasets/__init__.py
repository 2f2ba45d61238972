"""Training data of the models."""
