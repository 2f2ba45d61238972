"""The system under measurement: where its files lie, single model services, and jobs through the public API."""
