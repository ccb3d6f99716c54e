"""What a verification record must hold, in a manifest as in a file beside it.

Where the files lie is left to `records`, what passes to `build.verify`.
"""

from __future__ import annotations

from collections.abc import Mapping

from aotbuild.cache.signature import DEVICES
from aotbuild.canonical import are_numbers, checked_list, matches
from aotbuild.target import Target

ERRORS = ("artifact_error", "eager_error", "bound")
"""Numbers of each case."""


def check_record(record: object, key: str) -> None:
    """Refuse a record of another key, or without what `match` and people read of it.

    Raises:
        ValueError: saying what it lacks.
    """
    if not isinstance(record, Mapping) or not isinstance(record.get("passed"), bool):
        raise ValueError("verification: 'passed' must be true or false")
    if not isinstance(record.get("key"), str):
        raise ValueError("verification: 'key' must be the artifact's")
    machine = Target.from_json(record.get("target"))
    if machine.device not in DEVICES or not matches(r"\w[\w.-]*", machine.arch):
        raise ValueError(f"verification: no such target as {machine.device!r} {machine.arch!r}")
    if record["key"] != key:
        raise ValueError(
            f"verification: it is of {record['key'][:12]}, and this artifact is {key[:12]}"
        )
    for case in checked_list("verification: 'cases'", record.get("cases", [])):
        _check_case(case)


def _check_case(case: object) -> None:
    if not isinstance(case, Mapping) or not isinstance(case.get("sizes"), Mapping):
        raise ValueError("verification: a case must be an object with 'sizes'")
    if not are_numbers(case.get(name) for name in ERRORS):
        raise ValueError(f"verification: a case must have the numbers {', '.join(ERRORS)}")
