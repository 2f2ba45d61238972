"""Tests, by kind."""
