"""Tests of tinyworld.datasets."""
