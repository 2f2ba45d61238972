"""What every service uses: wire schemas, batching, storage, profiles. It knows no service."""
