"""Tests of gateway.feedback."""
