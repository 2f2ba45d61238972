"""Tests of embedded.library."""
