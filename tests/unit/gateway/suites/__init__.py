"""Tests of gateway.suites."""
