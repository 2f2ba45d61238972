"""Tests of tinyworld.yardstick."""
