"""What shipped weights do."""
