"""Authors' values as bytes, and back: `Codec` is all that the rest of the engine sees of it."""

from workflow_sdk.core.codec.digests import differ, digest
from workflow_sdk.core.codec.sealing import SealedError, Wrapper, Wrappers, is_sealed
from workflow_sdk.core.codec.values import VALUE_BYTES_MAX, Codec

__all__ = ["VALUE_BYTES_MAX", "Codec", "SealedError", "Wrapper", "Wrappers", "differ", "digest", "is_sealed"]
