"""What every service uses: wire schemas, batching, storage, profiles. It knows no service."""

__version__ = "0.1.0"
