"""A process for a measurement: its answer, and what is said when it has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotbuild.bench.process import DiedError, raised, run_module

CODE = "import json, os, sys; document = json.load(sys.stdin); print('a word'); "


def make(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    (folder / "measurement.py").write_text(CODE + code)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_module_gives_its_last_line_when_it_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "print(json.dumps({**document, 'cache': os.environ['TORCHINDUCTOR_CACHE_DIR']}))"
    make(tmp_path, monkeypatch, code)
    answer = run_module("measurement", {"x": 1}, cache=tmp_path, what="a way")
    assert answer == {"x": 1, "cache": str(tmp_path)}


@pytest.mark.parametrize(
    "code", ["sys.exit('too little memory')", "print([1]); sys.exit('too little memory')"]
)
def test_module_is_an_error_with_its_words_when_it_dies(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, monkeypatch, code)
    with pytest.raises(
        DiedError, match="process for a way ended with exit code 1: too little"
    ) as e:
        run_module("measurement", {}, cache=tmp_path, what="a way")
    assert raised(e.value.printed) == "too little memory"


def test_raised_is_the_last_tracebacks_exception_when_more_is_printed_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
def fail():
    try:
        raise KeyError("the first")
    except KeyError as e:
        raise RuntimeError("backend raised:\\n  ValueError: no such layout") from e
try:
    fail()
except RuntimeError:
    import traceback
    traceback.print_exc()
    sys.stderr.write("\\n")
    sys.exit(1)
"""
    make(tmp_path, monkeypatch, code)
    with pytest.raises(DiedError) as caught:
        run_module("measurement", {}, cache=tmp_path, what="a way")
    expected = "RuntimeError: backend raised: ValueError: no such layout"
    assert raised(caught.value.printed) == expected
