"""`contrafact.test` behind its signature: the caller's model and images, one job on an embedded system, its outcome."""
