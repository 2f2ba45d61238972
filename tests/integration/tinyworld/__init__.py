"""Tests of tinyworld with real databases and servers."""
