"""Benchmarks: each answers one question, has a make target, and reports ratios against a baseline in the same run."""
