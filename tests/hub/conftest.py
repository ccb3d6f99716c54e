"""The fixtures of `hub_fixtures`, for the tests of this room."""

from __future__ import annotations

from hub_fixtures import hub, small_hub

__all__ = ["hub", "small_hub"]
