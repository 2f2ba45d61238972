"""Tests of research with whole services."""
