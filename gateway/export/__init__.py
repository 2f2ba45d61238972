"""Exports: a job's images, labels and provenance as one streamed archive that common tools read."""
