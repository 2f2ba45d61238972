"""HTML pages over the same functions as the API. They need no build step and load nothing from other hosts."""
