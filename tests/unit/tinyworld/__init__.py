"""Tests of tinyworld."""
