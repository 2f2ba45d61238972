"""Small networks and tokenizers before training."""
