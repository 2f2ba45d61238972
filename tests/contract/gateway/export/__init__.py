"""Tests of gateway.export."""
