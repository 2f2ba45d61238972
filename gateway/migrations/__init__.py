"""Schema revisions, applied by `gateway.database.migrate` or `make migrate`."""
