"""A small Hub per test, and huggingface_hub pointed at it as its own settings would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_server import serving
from hub_state import SmallHub

from aotbuild.cache.hub import Hub


@pytest.fixture
def small_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallHub]:
    """The Hub of this test: what `HF_ENDPOINT`, `HF_TOKEN` and the like would name."""
    with serving() as found:
        for name, value in settings(found, tmp_path).items():
            monkeypatch.setenv(name, value)
        point_client(monkeypatch, found, tmp_path)
        yield found


@pytest.fixture
def hub(small_hub: SmallHub) -> Hub:
    """Our client, which waits next to nothing before it tries again."""
    return Hub(pause_s=0.01)


def settings(hub: SmallHub, folder: Path) -> dict[str, str]:
    """The environment of a process that is to speak to `hub`."""
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HUB_CACHE": str(folder / "hf-cache"),
        "HF_HOME": str(folder / "hf-home"),
        "HF_TOKEN": "hf_test",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }


def point_client(monkeypatch: pytest.MonkeyPatch, hub: SmallHub, folder: Path) -> None:
    """In this process the client read its settings when it was imported: set them there."""
    from huggingface_hub import constants
    from huggingface_hub.utils import _http

    values: dict[str, Any] = {
        "ENDPOINT": hub.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
        "HF_HUB_CACHE": str(folder / "hf-cache"),
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_DISABLE_PROGRESS_BARS": True,
    }
    for name, value in values.items():
        monkeypatch.setattr(constants, name, value)
    _http.close_session()
