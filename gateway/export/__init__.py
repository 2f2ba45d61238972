"""What a user leaves with: a job's images, labels and provenance as one streamed archive, as known tools read it."""
