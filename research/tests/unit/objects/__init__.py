"""Tests of research.objects."""
