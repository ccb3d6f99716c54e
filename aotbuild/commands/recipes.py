"""`recipes` and `recipes new`: the recipes that ship, and a draft of one's own."""

from __future__ import annotations

import json
from pathlib import Path

import click

from aotbuild.commands.draft import draft_recipe, explain_draft
from aotbuild.commands.output import json_option, print_json, print_table
from aotbuild.commands.toml import to_toml
from aotbuild.errors import UsageError
from aotbuild.groups import Group
from aotbuild.recipe import Recipe, load_configs, load_recipe, parse_recipe, recipe_names


@click.group(cls=Group, invoke_without_command=True)
@json_option
@click.pass_context
def recipes(ctx: click.Context, as_json: bool) -> None:
    """List the recipes that ship; `new` drafts one from a checkpoint."""
    if ctx.invoked_subcommand is not None:
        return
    found = [load_recipe(name) for name in recipe_names()]
    if as_json:
        print_json({"recipes": [r.to_json() for r in found]})
        return
    print_table(("recipe", "default call", "dtype", "components", "title"), map(_row, found))


@recipes.command()
@click.argument("source", metavar="FOLDER|REPO")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write.  [default: ./NAME.toml]",
)
@click.option("--revision", help="Commit, branch or tag of REPO.")
def new(source: str, out: Path | None, revision: str | None) -> None:
    """Draft a recipe from the configs of a checkpoint: a diffusers folder, or a Hub repository.

    What the draft can't know (the length of prompts, guidance, the sizes you serve) is yours to
    fill in. Configs from the Hub are written beside it, so that a build needs no network.
    """
    folder = Path(source).expanduser()
    local = folder.is_dir()
    if not local:
        if source.startswith(("/", "./", "../", "~")) or source.count("/") != 1:
            raise UsageError(f"{source} is neither a folder nor a repository `organisation/name`.")
        from aotbuild.cache.hub import fetch_configs

        folder = fetch_configs(source, revision)
    configs = load_configs(f"{folder.resolve()}/")
    recipe = draft_recipe(
        configs,
        source=source if not local else folder.resolve().name,
        architecture="/",
        hub=not local,
    )
    file = out or Path(f"{recipe.name}.toml")
    architecture = folder.resolve() if local else file.resolve().with_suffix("")
    for path in (file, *(() if local else (architecture,))):
        if path.exists():
            raise UsageError(f"{path} exists already; name another file with --out.")
    if not local:
        _write_configs(architecture, configs)
    _write(file, recipe, architecture, revision)
    click.echo(f"{file}: check it against docs/recipes.md, then `aotbuild plan {file} --gpu cpu`.")


def _row(recipe: Recipe) -> tuple[str, ...]:
    units = ", ".join(
        name if method == "forward" else f"{name}.{method}"
        for name, component in recipe.components.items()
        for method in component.methods
    )
    return recipe.name, recipe.call.resolution, recipe.dtype, units, recipe.title


def _write_configs(folder: Path, configs: dict[str, dict[str, object]]) -> None:
    folder.mkdir(parents=True)
    for name, config in configs.items():
        text = json.dumps(config, indent=2) + "\n"
        folder.joinpath(f"{name}.json").write_text(text, encoding="utf-8")


def _write(file: Path, recipe: Recipe, architecture: Path, revision: str | None) -> None:
    document = {
        **recipe.to_json(),
        "architecture": _path_from(file.resolve().parent, architecture),
        "revision": revision,
    }
    drafted = Recipe.from_json(document)
    text = to_toml(drafted, explain_draft(drafted))
    parse_recipe(text, where=str(file))
    file.write_text(text, encoding="utf-8")


def _path_from(folder: Path, configs: Path) -> str:
    """`configs` as the recipe says it: relative where both can be moved together."""
    if configs.is_relative_to(folder):
        return f"./{configs.relative_to(folder)}/".replace("././", "./")
    return f"{configs}/"
