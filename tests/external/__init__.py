"""Tests that start Helm, Docker or llama.cpp."""
