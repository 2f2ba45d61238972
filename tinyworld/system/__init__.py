"""Run the shipped system for a measurement: single model services, or whole jobs through the public API."""
