"""Repairs of planted models of both domains, held against renderer truth: `python -m tinyworld.measure.repair`."""
