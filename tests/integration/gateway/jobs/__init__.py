"""Tests of gateway.jobs with real databases and servers."""
