"""The contracts between gateway and model services, and with users: one module per subject."""
