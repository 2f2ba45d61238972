"""Tests of gateway.kinds."""
