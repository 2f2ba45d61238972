"""Tests of gateway.methods with real databases and servers."""
