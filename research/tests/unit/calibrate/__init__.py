"""Tests of research.calibrate."""
