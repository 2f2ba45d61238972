"""Edits of both domains under which protected things must keep their shape."""
