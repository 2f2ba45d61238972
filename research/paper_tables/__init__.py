"""The papers' tables on tinyworld: every method's job on the same source images, and all its figures."""
