"""Tests of research.pictures."""
