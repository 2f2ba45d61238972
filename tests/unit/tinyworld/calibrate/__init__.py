"""Tests of tinyworld.calibrate."""
