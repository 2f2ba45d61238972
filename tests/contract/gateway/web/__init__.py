"""Tests of gateway.web."""
