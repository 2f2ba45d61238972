"""Tests of research.domain."""
