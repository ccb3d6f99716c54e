"""`bench report`: what the ladder left, drawn; `aotbuild.bench.ladder.report` draws."""

from __future__ import annotations

from pathlib import Path

import click

from aotbuild.commands.output import make_out
from aotbuild.errors import UsageError


@click.command()
@click.argument(
    "folders",
    nargs=-1,
    required=True,
    metavar="DIR...",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option(
    "--against",
    metavar="published|CSV",
    help="Others' figures to set beside: `published` is docs/published.csv of the source.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("bench-report"),
    show_default=True,
)
def report(folders: tuple[Path, ...], against: str | None, out: Path) -> None:
    """Draw what `bench ladder` and `bench throughput` left: one CSV, two plots, one HTML page."""
    from aotbuild.bench.ladder.report import write_report

    published = None if against is None else _published(against)
    try:
        files = write_report(folders, make_out(out), published)
    except ImportError as e:
        raise UsageError(
            f"{e.name} isn't installed, and the report needs it: pip install 'aotbuild[bench]'."
        ) from e
    for file in files:
        click.echo(str(file))


def _published(against: str) -> Path:
    if against != "published":
        return Path(against).expanduser()
    found = Path(__file__).resolve().parents[2] / "docs" / "published.csv"
    if not found.exists():
        raise UsageError(
            "--against published reads docs/published.csv of the source, and aotbuild was "
            "installed without it: download that file, and name its path."
        )
    return found
