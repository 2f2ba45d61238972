"""Results in words, the same on terminals, on pages and in reports."""
