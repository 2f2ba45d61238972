"""Tests of shipped weights and oracles."""
