"""Tests of gateway.models_under_test."""
