"""The yardstick: models with known weaknesses, the measured answer key, and the scores of methods that search them."""
