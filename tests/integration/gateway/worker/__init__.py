"""Tests of gateway.worker with real databases and servers."""
