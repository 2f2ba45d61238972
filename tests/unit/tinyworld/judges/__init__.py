"""Tests of tinyworld.judges."""
