"""Tests of the shipped weights, tinyworld/weights."""
