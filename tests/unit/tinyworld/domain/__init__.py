"""Tests of tinyworld.domain."""
