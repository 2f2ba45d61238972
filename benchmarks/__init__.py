"""Benchmarks: each file one question, each a make target, each a ratio against something real in the same run."""
