from __future__ import annotations

from typing import Any

import pytest

from aotbuild.cache.key import (
    ABSENT,
    PART_NAMES,
    Part,
    differences,
    json_differences,
    key_of,
    make_parts,
)

VALUES: dict[str, Any] = {name: {"part": name, "list": [1, 2]} for name in PART_NAMES}


@pytest.mark.parametrize("name", PART_NAMES)
def test_key_changes_when_one_part_does(name: str) -> None:
    changed = make_parts({**VALUES, name: {"part": name, "list": [1, 3]}})

    assert key_of(changed) != key_of(make_parts(VALUES))
    assert list(differences(make_parts(VALUES), changed)) == [(f"{name}.list.1", 2, 3)]


def test_key_is_the_same_when_only_the_order_of_entries_differs() -> None:
    shuffled = {name: dict(reversed(VALUES[name].items())) for name in reversed(PART_NAMES)}

    assert key_of(make_parts(shuffled)) == key_of(make_parts(VALUES))


def test_key_differs_when_two_parts_swap_their_values() -> None:
    swapped = {**VALUES, "rules": VALUES["tuning"], "tuning": VALUES["rules"]}

    assert key_of(make_parts(swapped)) != key_of(make_parts(VALUES))


def test_make_parts_refuses_when_a_part_is_missing_or_unknown() -> None:
    with pytest.raises(ValueError, match=r"\['weather'\]"):
        make_parts({**VALUES, "weather": 1})
    with pytest.raises(ValueError, match=r"\['rules'\]"):
        make_parts({name: v for name, v in VALUES.items() if name != "rules"})


def test_part_refuses_when_its_digest_is_not_its_values() -> None:
    document = Part.of("rules", 1).to_json()

    assert Part.from_json(document) == Part.of("rules", 1)
    with pytest.raises(ValueError, match="sha256"):
        Part.from_json({**document, "value": 2})


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": True}, {"a": 1}, [("a", True, 1)]),
        ({"a": {"b": [True]}}, {"a": {"b": [1]}}, [("a.b.0", True, 1)]),
        ({"a": None}, {}, [("a", None, ABSENT)]),
        ({"a": [1]}, {"a": [1, 2]}, [("a", [1], [1, 2])]),
        ({"a": {}}, {"a": None}, [("a", {}, None)]),
        (1, 1.0, [("", 1, 1.0)]),
    ],
)
def test_json_differences_tells_values_apart_by_type(left: Any, right: Any, found: Any) -> None:
    assert list(json_differences("", left, right)) == found
