"""Jobs: choose, submit, list, cancel, and how far they are."""
