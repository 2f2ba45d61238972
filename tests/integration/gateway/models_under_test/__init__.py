"""Tests of gateway.models_under_test with real databases and servers."""
