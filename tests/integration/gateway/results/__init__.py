"""Tests of gateway.results with real databases and servers."""
