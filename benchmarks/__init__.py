"""Benchmarks. Each answers one question, has a make target, and reports ratios to a baseline of the same run."""
