"""Tests of tinyworld.networks."""
