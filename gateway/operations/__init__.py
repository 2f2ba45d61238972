"""For operators: health, start-up checks, housekeeping, `contrafact doctor`."""
