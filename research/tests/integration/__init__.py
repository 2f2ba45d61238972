"""Tests of research with real databases and servers."""
