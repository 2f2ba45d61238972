"""The queue: leases on source images and jobs, and the Celery messages that wake workers up."""
