"""Tests of gateway.reviews with real databases and servers."""
