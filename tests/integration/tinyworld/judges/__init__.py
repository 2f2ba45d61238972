"""Tests of tinyworld.judges with real databases and servers."""
