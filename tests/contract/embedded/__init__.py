"""Tests of embedded."""
