"""Compares two models, two methods or two jobs on the same source images."""
