"""Compares repairs of planted models of both domains with renderer truth: `python -m research.measure.repair`."""
