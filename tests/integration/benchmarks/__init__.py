"""Tests of benchmarks with real databases and servers."""
