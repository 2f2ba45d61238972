"""Tests of tinyworld.roads."""
