"""Tests of research.measure."""
