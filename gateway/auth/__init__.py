"""Who may do what: API keys, browser sessions, and the middleware that stands before every route."""
