"""Tests of gateway.confirmations."""
