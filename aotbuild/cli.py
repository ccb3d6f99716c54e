"""The command line: which commands there are, what an error looks like; `commands` do the work."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from aotbuild.errors import AotbuildError, UsageError
from aotbuild.groups import Group

COMMANDS = {
    "build": ("build:build", "Compile a recipe's components into the store."),
    "plan": ("build:plan", "Say what `build` would compile, and what the store already has."),
    "matrix": (
        "matrix:matrix",
        "Build recipes times GPUs times sizes, and go on where it stopped.",
    ),
    "recipes": ("recipes:recipes", "List the recipes; draft one from a checkpoint."),
    "list": ("store:list_artifacts", "List the artifacts of a store."),
    "show": ("store:show", "Show one artifact's manifest."),
    "explain": ("store:explain", "Say what makes two keys differ."),
    "verify": (
        "verify:verify",
        "Compare an artifact with the eager module, and record the result.",
    ),
    "prune": ("prune:prune", "Remove artifacts, and what dead builds left behind."),
    "push": ("push:push", "Put artifacts into a collection on the Hub."),
    "pull": ("pull:pull", "Bring artifacts of a collection into the store."),
    "lookup": ("lookup:lookup", "Say what there is for a recipe on a GPU, and what isn't."),
    "lock": ("lock:lock", "Write a lockfile of a collection's artifacts."),
    "prefetch": ("pull:prefetch", "Bring what a lockfile names into the store."),
    "doctor": ("doctor:doctor", "Say what this machine is, and which artifacts it would use."),
    "demo": ("demo:demo", "Build `tiny`, run it eagerly and from artifacts, draw the difference."),
    "bench": ("bench:bench", "Measure cold starts, what the guard costs, what each recipe builds."),
}
"""Name -> where below `aotbuild.commands` it is, and its line of help: help imports no command."""


class LazyGroup(Group):
    """A group that imports a command's module when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the order of `COMMANDS`."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(
            importlib.import_module(f"aotbuild.commands.{module}"), attribute
        )
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of commands, written without importing any."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="aotbuild")
def cli() -> None:
    """Compile the heavy components of a diffusers pipeline ahead of time, and keep the results.

    Start with `aotbuild demo`; then `aotbuild build sdxl --gpu a100`.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit code: 0 done, 1 the work failed, 2 the call was wrong, 130 interrupted.
    """
    try:
        code: Any = cli.main(arguments, prog_name="aotbuild", standalone_mode=False)
    except click.ClickException as e:
        e.show()
        return e.exit_code
    except AotbuildError as e:
        click.echo(f"aotbuild: {e}", err=True)
        return 2 if isinstance(e, UsageError) else 1
    except BrokenPipeError:
        # The reader of our output is gone: nothing to say, and no flush at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as e:
        click.echo(f"aotbuild: {e.filename or 'the system'}: {e.strerror or e}.", err=True)
        return 1
    except (KeyboardInterrupt, click.Abort):
        click.echo("aotbuild: interrupted; finished artifacts are in the store.", err=True)
        return 130
    return code if isinstance(code, int) else 0
