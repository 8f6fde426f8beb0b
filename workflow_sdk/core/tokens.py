"""Tokens of waits, as the world sees them.

Inside, a wait is known by since when and where it waits, which anybody can guess. What is shown also proves that
whoever sends it has seen it: 128 bits, derived from the secret of the instance. They need no row of their own, and are
the same in every process, and as long as the wait lasts.
"""

from __future__ import annotations

from hashlib import blake2b
from hmac import compare_digest

__all__ = ["proof_of", "shown_token", "wait_of"]

PROOF_BYTES = 16


def proof_of(seed: bytes, instance_id: str, token: bytes) -> bytes:
    """What only those know who have seen the token of a wait of this instance."""
    about = instance_id.encode("utf-8", "surrogatepass")
    hashed = blake2b(len(about).to_bytes(4, "big"), key=seed, person=b"wait", digest_size=PROOF_BYTES)
    hashed.update(about)
    hashed.update(token)
    return hashed.digest()


def shown_token(proof: bytes, token: bytes) -> str:
    """The token of a wait, as the world sees it."""
    return (proof + token).hex()


def wait_of(seed: bytes, instance_id: str, shown: str) -> bytes | None:
    """The wait that such a token is of; None if it is of none that this instance has ever shown."""
    try:
        raw = bytes.fromhex(shown)
    except ValueError:
        return None
    token = raw[PROOF_BYTES:]
    return token if compare_digest(raw[:PROOF_BYTES], proof_of(seed, instance_id, token)) else None
