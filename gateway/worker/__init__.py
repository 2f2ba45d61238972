"""The Celery worker: one source image per step, the analysis of a finished job, and replay."""
