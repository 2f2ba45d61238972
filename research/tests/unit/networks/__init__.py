"""Tests of research.networks."""
