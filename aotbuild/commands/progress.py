"""What a build shows while it runs: a live line on a terminal, plain lines elsewhere; on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import click

from aotbuild.build.request import Event
from aotbuild.commands.output import human_seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.spinner import Spinner


class Progress(Protocol):
    """Something that hears a build's events."""

    def __call__(self, event: Event) -> None:
        """Take note of one event: a stage that begins (`seconds` None), or has ended."""


@contextmanager
def progress() -> Iterator[Progress]:
    """A listener for the length of a build, fit for what stderr is."""
    if not sys.stderr.isatty():
        yield _plain
        return
    from rich.console import Console

    with _Live(Console(stderr=True)) as live:
        yield live


def describe(event: Event) -> str:
    """One event as one line: component, stage, seconds or what is going on."""
    tail = event.message or ("..." if event.seconds is None else "")
    time_spent = "" if event.seconds is None else human_seconds(event.seconds)
    return "  ".join(
        p
        for p in (f"{event.component or 'pipeline':<12}", f"{event.stage:<9}", time_spent, tail)
        if p
    )


def _plain(event: Event) -> None:
    click.echo(describe(event).rstrip(), err=True)


class _Live:
    """A line that counts the seconds of the running stage; ended stages stay above it."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live
        from rich.spinner import Spinner

        self._console = console
        self._begun, self._text = time.monotonic(), "starting"
        self._spinner = Spinner("dots")
        self._live = Live(
            get_renderable=self._render, console=console, refresh_per_second=8, transient=True
        )

    def __enter__(self) -> _Live:
        self._live.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        if event.seconds is None:
            self._text, self._begun = (
                f"{event.component or 'pipeline'}  {event.stage}",
                time.monotonic(),
            )
        if event.seconds is not None or event.message:
            self._console.print(describe(event), highlight=False, markup=False)

    def _render(self) -> Spinner:
        self._spinner.update(text=f"{self._text}  {time.monotonic() - self._begun:.0f} s")
        return self._spinner
