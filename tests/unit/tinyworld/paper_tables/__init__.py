"""Tests of tinyworld.paper_tables."""
