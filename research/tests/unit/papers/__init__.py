"""Tests of research.papers."""
