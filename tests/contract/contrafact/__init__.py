"""Tests of contrafact."""
