"""What dead builders left is swept; what others keep in a folder of that name is not."""

from __future__ import annotations

from pathlib import Path

from aotbuild.cache.staging import scratch


def test_sweep_leaves_what_is_not_named_as_a_builders_folder(tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    (staging / "site").mkdir(parents=True)
    (staging / "notes.txt").write_text("precious")
    (staging / "999999-0123abcd").mkdir()
    with scratch(staging):
        pass
    assert sorted(p.name for p in staging.iterdir()) == ["notes.txt", "site"]
