"""Tests of gateway.repairs with real databases and servers."""
