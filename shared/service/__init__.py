"""What every service does alike: HTTP, batches, devices, readiness, settings, logs, and calls of other servers."""
