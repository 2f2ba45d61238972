"""Tests of gateway.auth with real databases and servers."""
