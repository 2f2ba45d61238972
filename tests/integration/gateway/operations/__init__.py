"""Tests of gateway.operations with real databases and servers."""
