"""Schema revisions, applied by `gateway.database.sessions.migrate` or `make migrate`."""
