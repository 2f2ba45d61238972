"""Code that every service uses: wire schemas, batching, storage, profiles. It imports no service."""

__version__ = "0.1.0"
