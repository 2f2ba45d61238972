"""Tests of research.roads."""
