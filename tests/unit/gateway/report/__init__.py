"""Tests of gateway.report."""
