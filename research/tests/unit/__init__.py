"""Unit tests of research."""
