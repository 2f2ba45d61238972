"""Seeds and ids derived from the identity of their owner, so that results never depend on order or neighbours."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: str | int) -> int:
    """Return a seed in 0 … 2⁶³ − 1 derived from the identity of its owner.

    Parts are joined unambiguously (each with its length), so ("ab", "c") and ("a", "bc") differ.
    """
    return int.from_bytes(derive_digest(*parts)[:8]) >> 1


def derive_id(*parts: str | int) -> str:
    """Return a 32-digit hexadecimal id derived from the identity of the object that it names."""
    return derive_digest(*parts)[:16].hex()


def derive_digest(*parts: str | int) -> bytes:
    """SHA-256 over length-prefixed parts."""
    hasher = hashlib.sha256()
    for part in parts:
        encoded = str(part).encode()
        hasher.update(len(encoded).to_bytes(8) + encoded)
    return hasher.digest()
