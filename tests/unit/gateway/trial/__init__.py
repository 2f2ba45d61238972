"""Tests of gateway.trial."""
