"""Strides: those of a contiguous layout, and whether two layouts are one. Touches no tensor."""

from __future__ import annotations


def same_strides(shape: tuple[int, ...], left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    """Whether two layouts of `shape` address the same; of one element there is no stride."""
    return left == right or all(a == b for n, a, b in zip(shape, left, right, strict=True) if n > 1)


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of `shape` where its last dimension is the innermost."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
