"""The Hub, spoken to here alone; so far only for a checkpoint's configs."""

from __future__ import annotations

from pathlib import Path

from aotbuild.errors import SourceError

CONFIGS = ("model_index.json", "config.json", "*/config.json", "*/*_config.json")
"""What decides an architecture: a few kilobytes of a checkpoint, none of its weights."""


def fetch_configs(repository: str, revision: str | None = None) -> Path:
    """A local diffusers folder with the configs of a checkpoint on the Hub, without weights.

    Args:
        repository: "organisation/name".
        revision: a commit, branch or tag; the default branch where None.

    Raises:
        SourceError: no such repository or revision, or the Hub can't be reached.
    """
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(repository, revision=revision, allow_patterns=list(CONFIGS))
    except Exception as e:
        # The Hub's client raises its own, its HTTP library's and the system's exceptions.
        reason = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        raise SourceError(
            f"The configs of {repository} can't be fetched from the Hub: {reason} "
            "A local diffusers folder works without it."
        ) from e
    return Path(folder)
