"""Tests of gateway.analysis."""
