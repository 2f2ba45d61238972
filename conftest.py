"""Plugins of all tests."""

pytest_plugins = ["tests.support.parts"]
