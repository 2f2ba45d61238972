"""Networks and tokenizers before training."""
