"""Authentication and authorisation: API keys, browser sessions, and the middleware in front of every route."""
