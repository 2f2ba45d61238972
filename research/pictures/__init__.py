"""Pictures as arrays, for both domains: rendering into a file, pixel values and random changes, control edges."""
