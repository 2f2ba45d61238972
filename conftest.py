"""Plugins of all tests."""

pytest_plugins = ["tests.support.cpu_seconds", "tests.support.parts"]
