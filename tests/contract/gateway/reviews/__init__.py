"""Tests of gateway.reviews."""
