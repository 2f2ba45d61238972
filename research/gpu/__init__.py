"""What to run when a GPU is at hand for half an hour."""
