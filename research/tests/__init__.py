"""Tests of what makes and measures: `make test-all` runs them."""
