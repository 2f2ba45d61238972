"""Tests of research.yardstick."""
