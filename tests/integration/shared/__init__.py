"""Tests of shared with real databases and servers."""
