"""Tests of gateway.repairs."""
