"""Who judges generated images: oracles, labels, and the trials that they judge."""
