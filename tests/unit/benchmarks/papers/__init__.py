"""Unit tests of the reproduction kits."""
