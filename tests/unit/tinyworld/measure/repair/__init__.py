"""Tests of tinyworld.measure.repair."""
