"""Tests of gateway.suites with real databases and servers."""
