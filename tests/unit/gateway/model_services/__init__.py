"""Tests of gateway.model_services."""
