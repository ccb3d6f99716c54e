from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from aotbuild.loaders.signature import (
    bind,
    fingerprint,
    method_of,
    normalise,
)


class Thing(torch.nn.Module):
    def forward(
        self, a: Any, b: Any = 2, *, c: Any = None, generator: Any = None, **more: Any
    ) -> Any:
        return a, b, c, more

    def uses(self, a: Any, generator: Any = None) -> Any:
        return torch.randn(1, generator=generator) + a

    def hidden(self, a: Any, generator: Any = None) -> Any:
        return locals()

    def closed(self, a: Any, generator: Any = None) -> Any:
        return lambda: generator


FORWARD = method_of(Thing, "forward")


def test_bind_is_one_call_whether_by_position_by_keyword_or_by_default() -> None:
    expected = {"a": 1, "b": 2, "c": None, "generator": None}
    assert bind(FORWARD, (1,), {}) == bind(FORWARD, (), {"a": 1, "b": 2}) == expected
    assert bind(FORWARD, (1, 2), {"c": None}) == expected
    assert bind(FORWARD, (1,), {"d": 4}) == {**expected, "d": 4}


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"a": 1}), ((), {"b": 1})]
)
def test_bind_is_none_when_the_call_doesnt_fit(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    assert bind(FORWARD, args, kwargs) is None
    with pytest.raises(TypeError, match="can't be called like that"):
        normalise(Thing(), "forward", args, kwargs)


def test_bind_drops_a_generator_only_where_it_is_never_read() -> None:
    generator = torch.Generator()
    assert bind(FORWARD, (1,), {"generator": generator})["generator"] is None  # type: ignore[index]
    for name in ("uses", "hidden", "closed"):
        call = bind(method_of(Thing, name), (1,), {"generator": generator})
        assert call is not None
        assert call["generator"] is generator


def test_method_of_sees_through_decorators() -> None:
    def decorated(method: Any) -> Any:
        @functools.wraps(method)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            return method(self, *args, **kwargs)

        return wrapper

    class Other(Thing):
        forward = decorated(Thing.forward)

    assert method_of(Other, "forward").positional == ("a", "b")


def test_fingerprint_tells_apart_what_eager_may() -> None:
    x = torch.zeros(2, 3)
    values: list[Any] = [
        1, True, 1.0, None, "1", {}, [], (), [1], (1,), {"a": 1}, {"b": 1}, x, x.half(),
        x[:1], x.to("meta"), torch.zeros(()), "", False, 0,
    ]  # fmt: skip
    assert len({fingerprint(v) for v in values}) == len(values)
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint(x) == fingerprint(torch.ones(3, 2).t())


@pytest.mark.parametrize("value", [object(), torch.Generator(), b"x", torch.eye(2).to_sparse()])
def test_fingerprint_refuses_leaves_it_cant_describe(value: object) -> None:
    with pytest.raises(TypeError):
        fingerprint({"a": [value]})
