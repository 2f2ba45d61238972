"""Tests of gateway.model_services with real databases and servers."""
