"""Pictures, language and instructions of drawn objects for training."""
