"""Authors' values as bytes, and back. The rest of the engine uses `Codec`."""

from __future__ import annotations

from workflow_sdk.values.codec import VALUE_BYTES_MAX, Codec, differ, digest
from workflow_sdk.values.sealing import SealedError, Wrapper, Wrappers, is_sealed

__all__ = ["VALUE_BYTES_MAX", "Codec", "SealedError", "Wrapper", "Wrappers", "differ", "digest", "is_sealed"]
