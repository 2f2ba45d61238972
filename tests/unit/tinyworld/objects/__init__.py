"""Tests of tinyworld.objects."""
