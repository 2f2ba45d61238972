"""One image through every configured service: what a first day on a new machine needs to know."""
