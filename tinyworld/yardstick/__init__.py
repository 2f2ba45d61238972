"""The yardstick: models whose weaknesses are known, the measured answer key, the score of whoever looks for them."""
