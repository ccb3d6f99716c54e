"""Groups of commands that know the nearest name of a misspelt one. Which commands is `cli`'s."""

from __future__ import annotations

from difflib import get_close_matches

import click

_FEW = 8


class Group(click.Group):
    """A group whose error for an unknown command says which one may be meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that `args` begin with."""
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            near = get_close_matches(args[0], names, n=1)
            known = f" There are {', '.join(names)}." if len(names) <= _FEW else ""
            hint = f": did you mean {near[0]}?" if near else f".{known}"
            ctx.fail(f"No such command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)
