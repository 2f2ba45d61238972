"""Tests of tinyworld.statistics."""
