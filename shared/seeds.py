"""Seeds derived from what they belong to, so that a result never depends on order or neighbours."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: str | int) -> int:
    """A seed in 0 … 2⁶³ − 1 from the identity of the thing that it is for.

    Parts are joined unambiguously (each with its length), so ("ab", "c") and ("a", "bc") differ.
    """
    return int.from_bytes(derive_digest(*parts)[:8]) >> 1


def derive_id(*parts: str | int) -> str:
    """A 32-digit hexadecimal id from the identity of the thing that it names."""
    return derive_digest(*parts)[:16].hex()


def derive_digest(*parts: str | int) -> bytes:
    """SHA-256 over length-prefixed parts."""
    hasher = hashlib.sha256()
    for part in parts:
        encoded = str(part).encode()
        hasher.update(len(encoded).to_bytes(8) + encoded)
    return hasher.digest()
