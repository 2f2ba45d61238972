"""Judges of generated images: oracles, human labels, and the edits that they judge."""
