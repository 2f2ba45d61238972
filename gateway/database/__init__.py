"""Tables, sessions, migrations and pagination; SQLite (embedded) and Postgres (deployed)."""
