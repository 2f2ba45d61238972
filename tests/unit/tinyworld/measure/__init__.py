"""Tests of tinyworld.measure."""
