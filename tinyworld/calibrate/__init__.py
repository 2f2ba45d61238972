"""Commands that fix the thresholds of the checks and measure the checks' errors."""
