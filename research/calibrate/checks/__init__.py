"""The thresholds of the image checks of both domains: `python -m research.calibrate.checks`."""
