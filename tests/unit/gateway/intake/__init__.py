"""Tests of gateway.intake."""
