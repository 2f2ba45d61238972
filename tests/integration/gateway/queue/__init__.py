"""Tests of gateway.queue with real databases and servers."""
