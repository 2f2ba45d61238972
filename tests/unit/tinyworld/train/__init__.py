"""Tests of tinyworld.train."""
