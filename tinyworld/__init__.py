"""A small drawn world: scenes with known factors, their images and captions, and small models trained on them."""
