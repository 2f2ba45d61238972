"""Tests of research.measure.repair."""
