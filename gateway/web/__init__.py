"""Pages for people over the same functions as the API: rendered here, no build step, nothing from elsewhere."""
