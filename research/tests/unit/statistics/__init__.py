"""Tests of research.statistics."""
