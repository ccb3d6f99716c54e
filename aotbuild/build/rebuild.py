"""`aotbuild verify`: an artifact against eager, or against a rebuild from its manifest alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aotbuild.build.blueprint import blueprint
from aotbuild.build.job import Job
from aotbuild.build.package import differing_sections
from aotbuild.build.run import run_worker
from aotbuild.build.targets import runs_here
from aotbuild.build.verify import verify_in_process
from aotbuild.cache.artifact import Entry
from aotbuild.cache.backend import AOT
from aotbuild.cache.key import differences
from aotbuild.cache.library import library_of, read_library
from aotbuild.cache.manifest import Manifest
from aotbuild.cache.store import Store
from aotbuild.errors import BuildError, TargetError, UsageError
from aotbuild.recipe import Recipe


def verify_entry(store: Store, entry: Entry) -> dict[str, Any]:
    """Compare the artifact with eager on this machine, and keep the record beside it.

    Raises:
        TargetError: this machine can't run it.
        BuildError: it couldn't be loaded.
    """
    manifest = entry.manifest
    if not runs_here(manifest.target):
        raise TargetError(
            f"{manifest.component} {manifest.key[:12]} is built for {manifest.target.arch}, which "
            "this machine can't run; `aotbuild doctor` says why. `aotbuild verify --rebuild` "
            "compares its bytes with a rebuild, which needs no such machine."
        )
    record = verify_in_process(store.root, manifest.key)
    store.add_verification(entry, record)
    return record


def rebuild_entry(store: Store, entry: Entry, recipe: Recipe | None = None) -> dict[str, Any]:
    """Build the artifact again, in a folder of its own, and compare the bytes.

    Args:
        recipe: whose components to build by, in place of the manifest's own: shows what a changed
            recipe would change.

    Returns:
        `same`, both sha256 of the package and of the library, the library's sections that differ,
        and the key parts that differ here and now as [path, recorded, here].

    Raises:
        UsageError: it is a JIT-cache bundle.
        BuildError: it can't be built again here.
    """
    manifest = entry.manifest
    if manifest.backend != AOT:
        raise UsageError(
            f"{manifest.key[:12]} is a JIT-cache bundle, whose pickles no second build repeats to "
            "the byte: whom it comes from is all there is to go by. `aotbuild verify` without "
            "--rebuild compares what it computes."
        )
    ours = read_library(entry.folder, manifest)
    job = job_of(manifest, recipe)
    print_ = blueprint(job)
    changed = [
        list(d)
        for d in differences(manifest.parts, print_.parts)
        if not d[0].startswith("weights")  # the code is compared, whatever weights lie beside it
    ]
    with store.staging() as root:
        made = run_worker(job.to_json(), print_.key, root, lambda _: None)
        folder = Path(made["folder"])
        again = Manifest.from_bytes((folder / "manifest.json").read_bytes())
        theirs = read_library(folder, again)
    return {
        "same": again.package.sha256 == manifest.package.sha256,
        "package": [manifest.package.sha256, again.package.sha256],
        "library": [library_of(manifest).sha256, library_of(again).sha256],
        "sections": list(differing_sections(ours, theirs)),
        "differences": changed,
    }


def job_of(manifest: Manifest, recipe: Recipe | None = None) -> Job:
    """The job that made an artifact, or would make it by the components of `recipe`.

    Raises:
        BuildError: the manifest lacks what is needed to build it again.
    """
    try:
        document = dict(manifest.recipe)
        if recipe is not None:
            document["components"] = recipe.to_json()["components"]
        return Job.from_json(
            {
                **manifest.provenance["rehearsal"],
                "recipe": document,
                "unit": manifest.component,
                "scope": manifest.scope,
                "backend": manifest.backend,
                "gpu": manifest.target.arch,
                "tune": False,
            }
        )
    except (KeyError, TypeError, ValueError) as e:
        raise BuildError(
            f"{manifest.key[:12]} doesn't say how it was built ({e}); only artifacts of `aotbuild "
            "build` can be rebuilt."
        ) from e
