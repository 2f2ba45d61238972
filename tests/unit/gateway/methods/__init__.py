"""Tests of gateway.methods."""
