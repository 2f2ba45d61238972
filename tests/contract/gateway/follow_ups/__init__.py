"""Tests of gateway.follow_ups."""
