"""Tests of research.judges."""
