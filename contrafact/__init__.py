"""What users import and run: the client of the public API and the command line."""
