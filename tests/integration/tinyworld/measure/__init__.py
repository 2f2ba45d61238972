"""Tests of tinyworld.measure with real databases and servers."""
