"""Tests of gateway.database with real databases and servers."""
