"""The one answer to "may this be done?": admission, quotas, allowlists and roles all give it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether something may be done: now (`allow`), later (`defer`), or not at all (`deny`). Only `allow` is true."""

    kind: Literal["allow", "defer", "deny"]
    reason: str = ""
    stage: str = ""
    """What has denied it: `limit`, `definition`, `admission`, `quarantine` or a stage of the author's own."""

    allow: ClassVar[Verdict]
    """It may be done now."""

    @staticmethod
    def defer(reason: str) -> Verdict:
        """It may be done later; why not now."""
        return Verdict("defer", reason)

    @staticmethod
    def deny(reason: str, stage: str = "") -> Verdict:
        """It may not be done; why, and what has denied it."""
        return Verdict("deny", reason, stage)

    def __bool__(self) -> bool:
        return self.kind == "allow"


Verdict.allow = Verdict("allow")
