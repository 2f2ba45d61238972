"""The papers' tables in kind, on tinyworld: every method's job on the same source images, and all figures of it."""
