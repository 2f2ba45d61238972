"""Tests of research.train."""
