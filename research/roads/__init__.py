"""Pictures, language and instructions of drawn driving scenes for training."""
