"""Tests of gateway.auth."""
