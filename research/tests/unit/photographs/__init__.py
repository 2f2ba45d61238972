"""Tests of research.photographs."""
