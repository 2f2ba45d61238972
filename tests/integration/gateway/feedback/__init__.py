"""Tests of gateway.feedback with real databases and servers."""
