"""Commands that measure methods and models against the domains' ground truth."""
