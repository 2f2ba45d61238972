"""Tests of gateway.results."""
