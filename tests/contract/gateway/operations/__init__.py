"""Tests of gateway.operations."""
