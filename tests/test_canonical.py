from __future__ import annotations

import pytest

from aotbuild.canonical import parse_json


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a":NaN}', "NaN"),
        ('{"a":-Infinity}', "-Infinity"),
        ('{"a":1e999}', "1e999"),
        ('{"a":"\\ud800"}', "surrogates"),
        ('{"\\uDFFF":1}', "surrogates"),
        (b'{"a":"\xff"}', "utf-8"),
        ("[" * 100_000, "nested"),
        ("9" * 5_000, "digits"),
        ("{", "Expecting"),
    ],
)
def test_parse_json_refuses_what_no_canonical_document_holds(
    text: bytes | str, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        parse_json(text)


def test_parse_json_takes_pairs_of_surrogates_and_numbers() -> None:
    assert parse_json('["\\ud83d\\ude00", 1.5, 2, "NaN"]') == ["\U0001f600", 1.5, 2, "NaN"]


def test_parse_json_refuses_one_name_twice_when_names_must_be_unique() -> None:
    text = '{"a":{"b":1,"b":2}}'
    assert parse_json(text) == {"a": {"b": 2}}
    with pytest.raises(ValueError, match="'b' twice"):
        parse_json(text, unique=True)
