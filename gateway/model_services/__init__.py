"""Typed clients of the four model services, and the clients that record every call."""
