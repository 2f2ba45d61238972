"""Tests of tinyworld.pictures."""
