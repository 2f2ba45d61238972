"""Rates with their intervals, and a test of equivalence."""
