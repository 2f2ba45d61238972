"""Tests of parts together with real databases and servers."""
