"""Tests of research.datasets."""
