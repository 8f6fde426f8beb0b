"""What values pass through before they are stored, as `codec=` takes it: one codec, or a list of them.

The first of a list writes, and all read. `plain` in the list reads what was written without a codec, and `unmarked`
what a codec wrote before there were marks. A codec of one's own is any object with `encode` and `decode`, each of bytes
to bytes.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Final, Protocol

from workflow_sdk.errors import DefinitionError
from workflow_sdk.values import PLAIN, Unmarked, Wrapper

__all__ = ["Codec", "fernet", "plain", "unmarked"]

Codec = Wrapper
"""Any object with `encode` and `decode`, each of bytes to bytes."""

plain: Final = PLAIN
"""Values as they are. In a list behind a codec: it reads what was written when there was none."""


def unmarked(codec: Codec) -> Codec:
    """Reads what this codec wrote with a release that did not mark it: `codec=[codec, unmarked(codec)]`."""
    return Unmarked(codec)


def fernet(keys: str | bytes | Sequence[str | bytes]) -> Codec:
    """Encryption by Fernet (AES-128-CBC with HMAC-SHA256). Needs the extra `crypto`.

    Of several keys, the first one encrypts and all decrypt; a new key is put in front. A key is what
    `cryptography.fernet.Fernet.generate_key()` gives.
    """
    try:
        from cryptography.fernet import Fernet, MultiFernet
    except ImportError:
        raise DefinitionError(
            "codecs.fernet needs the package cryptography: pip install 'workflow-sdk[crypto]'"
        ) from None
    several = [keys] if isinstance(keys, (str, bytes)) else list(keys)
    if not several:
        raise DefinitionError("codecs.fernet takes a key, or several")
    try:
        return _Fernet(MultiFernet([Fernet(key) for key in several]))
    except (TypeError, ValueError):
        # Not with the key itself, which is a secret.
        raise DefinitionError(
            "a key of codecs.fernet is 32 bytes in base64, as Fernet.generate_key() of cryptography.fernet gives it"
        ) from None


class _Keys(Protocol):
    def encrypt(self, msg: bytes) -> bytes: ...
    def decrypt(self, msg: bytes) -> bytes: ...


class _Fernet:
    def __init__(self, keys: _Keys) -> None:
        self._keys = keys

    def encode(self, data: bytes, /) -> bytes:
        return urlsafe_b64decode(self._keys.encrypt(data))

    def decode(self, data: bytes, /) -> bytes:
        return self._keys.decrypt(urlsafe_b64encode(data))

    def __repr__(self) -> str:
        return "fernet(...)"
