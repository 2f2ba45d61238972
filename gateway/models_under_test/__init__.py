"""Models under test: uploads, their packages, and the models of a job."""
