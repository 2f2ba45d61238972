"""Measure the editor that follows instructions, by the oracles of its domain."""
