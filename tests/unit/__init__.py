"""Tests of functions and modules alone."""
