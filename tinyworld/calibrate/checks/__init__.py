"""The thresholds of the image checks of both domains: `python -m tinyworld.calibrate.checks`."""
