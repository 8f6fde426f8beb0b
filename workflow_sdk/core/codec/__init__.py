"""Authors' values as bytes, and back: `Codec` is all that the rest of the engine sees of it."""

from workflow_sdk.core.codec.digests import differ, digest
from workflow_sdk.core.codec.values import VALUE_BYTES_MAX, Codec, Wrapper

__all__ = ["VALUE_BYTES_MAX", "Codec", "Wrapper", "differ", "digest"]
