"""`aotbuild verify`: an artifact against eager, or against a rebuild from its manifest alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aotbuild.build.plan import Job, blueprint
from aotbuild.build.run import run_worker
from aotbuild.build.targets import runs_here
from aotbuild.build.verify import verify_in_process
from aotbuild.cache.artifact import Entry
from aotbuild.cache.key import differences
from aotbuild.cache.manifest import Manifest
from aotbuild.cache.store import Store
from aotbuild.errors import BuildError, TargetError


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


def rebuild_entry(store: Store, entry: Entry) -> dict[str, Any]:
    """Build the artifact again from its manifest, in a folder of its own, and compare the bytes.

    Returns:
        `same`, both sha256 of the package and of the library, and the key parts that differ here
        and now as [path, recorded, here].

    Raises:
        BuildError: it can't be built again here.
    """
    manifest = entry.manifest
    job = job_of(manifest)
    print_ = blueprint(job)
    changed = [list(d) for d in differences(manifest.parts, print_.parts)]
    with store.staging() as root:
        made = run_worker(job.to_json(), print_.key, root, lambda _: None)
        again = Manifest.from_bytes((Path(made["folder"]) / "manifest.json").read_bytes())
    return {
        "same": again.package.sha256 == manifest.package.sha256,
        "package": [manifest.package.sha256, again.package.sha256],
        "library": [manifest.library.sha256, again.library.sha256],
        "differences": changed,
    }


def job_of(manifest: Manifest) -> Job:
    """The job that made an artifact.

    Raises:
        BuildError: the manifest lacks what is needed to build it again.
    """
    try:
        return Job.from_json(
            {
                **manifest.provenance["rehearsal"],
                "recipe": manifest.recipe,
                "unit": manifest.component,
                "gpu": manifest.target.arch,
                "tune": False,
            }
        )
    except (KeyError, TypeError, ValueError) as e:
        raise BuildError(
            f"{manifest.key[:12]} doesn't say how it was built ({e}); only artifacts of `aotbuild "
            "build` can be rebuilt."
        ) from e
