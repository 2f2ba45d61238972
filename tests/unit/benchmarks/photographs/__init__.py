"""Tests of benchmarks.photographs."""
