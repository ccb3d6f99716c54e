from __future__ import annotations

import aotbuild.cache


def test_exports_are_complete_and_sorted() -> None:
    names = aotbuild.cache.__all__

    assert names == sorted(names)
    assert all(hasattr(aotbuild.cache, name) for name in names)
    public = {n for n, v in vars(aotbuild.cache).items() if isinstance(v, type)}
    assert public == set(names)
