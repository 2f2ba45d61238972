"""Commands that measure methods and models by the domains' ground truth."""
