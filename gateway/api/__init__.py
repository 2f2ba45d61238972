"""The public HTTP contract: one module per noun, routes of about ten lines."""
