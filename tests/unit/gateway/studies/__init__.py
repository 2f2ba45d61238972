"""Tests of gateway.studies."""
