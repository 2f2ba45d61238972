"""Tests of commands of research."""
