"""What people read: sizes, seconds, tables, progress."""

from __future__ import annotations

import io

import pytest

from aotbuild.build.request import Event
from aotbuild.commands.output import human_bytes, human_seconds, print_table
from aotbuild.commands.progress import describe, progress
from aotbuild.commands.prune import parse_size
from aotbuild.errors import UsageError


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1234, "1.2 kB"), (5_200_000, "5.2 MB"), (3 * 10**12, "3.0 TB")],
)
def test_bytes_are_written_in_powers_of_ten(count: int, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (48.23, "48.2 s"),
        (148.2, "148 s"),
        (0.0123, "12.3 ms"),
        (5.5e-05, "55.0 us"),
        (2.0, "2.00 s"),
    ],
)
def test_seconds_have_three_figures_when_written(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


@pytest.mark.parametrize(("text", "count"), [("5GB", 5 * 10**9), ("1.5 MB", 1_500_000), ("0kB", 0)])
def test_size_is_bytes_when_read(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["5 parsecs", "1", "0", "GB"])
def test_size_is_refused_when_its_unit_is_unknown_or_missing(text: str) -> None:
    with pytest.raises(UsageError, match="with its unit, like 500MB or 5GB"):
        parse_size(text)


def test_table_has_aligned_columns_and_no_trailing_space(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(("a", "bb"), [("long", "x"), ("s", "yy")])
    assert capsys.readouterr().out == "a     bb\nlong  x\ns     yy\n"


def test_event_is_one_line_with_stage_component_and_time() -> None:
    line = describe(Event(stage="compile", component="unet", seconds=12.34))
    assert line.split() == ["unet", "compile", "12.3", "s"]


def test_progress_is_plain_lines_on_stderr_when_it_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress() as on_event:
        on_event(Event(stage="export", component="unet"))
        on_event(Event(stage="export", component="unet", seconds=1.0))
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 2
    assert "\x1b" not in said.err


def test_progress_counts_seconds_when_stderr_is_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress() as on_event:
        on_event(Event(stage="export", component="unet"))
        on_event(Event(stage="export", component="unet", seconds=1.0))
    assert "unet" in terminal.getvalue()
    assert "1.00 s" in terminal.getvalue()
