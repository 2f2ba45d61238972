"""Tests of gateway with real databases and servers."""
