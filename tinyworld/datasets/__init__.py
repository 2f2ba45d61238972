"""What the models are trained on."""
