"""The yardstick: models with known weaknesses, the measured answer key, and the score of methods that look for them."""
