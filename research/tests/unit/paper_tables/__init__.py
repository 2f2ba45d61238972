"""Tests of research.paper_tables."""
