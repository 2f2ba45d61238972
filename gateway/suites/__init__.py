"""Frozen suites of counterfactuals, and releases tested against them."""
