"""Tests of gateway.jobs."""
