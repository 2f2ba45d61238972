"""Commands that set the thresholds of the checks and measure the checks' errors."""
