"""Which module an artifact was compiled from. What a module's identity is `loaders.state` finds."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from aotbuild.canonical import check_texts, digest, matches


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleIdentity:
    """Which module an artifact was compiled from.

    Attributes:
        class_name: "UNet2DConditionModel"; for a repeated block the block's class.
        config: the config that decides the architecture, without private keys.
        config_sha256: digest of `config`.
        source_sha256: digest over the source of the module's classes, see `loaders.state`.
    """

    class_name: str
    config: dict[str, Any]
    config_sha256: str
    source_sha256: str

    def __post_init__(self) -> None:
        check_texts("module", self, "class_name", "source_sha256")
        if not matches("[0-9a-f]{64}", self.source_sha256):
            raise ValueError("module: source_sha256 isn't 64 hex digits")
        if not isinstance(self.config, dict):
            raise ValueError("module: config isn't an object")
        if self.config_sha256 != digest(self.config):
            raise ValueError("module: config_sha256 isn't that of config")

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field; `asdict` would copy the config, which takes long."""
        return {f.name: getattr(self, f.name) for f in fields(self)}
