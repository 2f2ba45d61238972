"""The measures: numpy and scipy on arrays. Knows no database, no image and no network."""
