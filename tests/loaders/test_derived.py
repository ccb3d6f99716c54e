"""Numbers of complex tables: eager's own memory, or one copy that follows them."""

from __future__ import annotations

import torch

from aotbuild.loaders.derived import Derived

CPU = torch.device("cpu")


def table() -> torch.Tensor:
    return torch.polar(torch.ones(4, 8), torch.arange(32.0).reshape(4, 8))


def test_numbers_are_eagers_own_memory_when_it_can_be_read_there() -> None:
    value, derived = table(), Derived()
    made = derived.real("table", value, CPU, 0)
    assert made.data_ptr() == value.data_ptr()
    assert torch.equal(made, torch.view_as_real(value))
    assert derived.extra_bytes == 0


def test_numbers_are_one_copy_when_the_table_lies_otherwise() -> None:
    derived = Derived()
    value = table().t().contiguous().t()
    made = derived.real("table", value, CPU, 0)
    assert made.is_contiguous()
    assert torch.equal(torch.view_as_complex(made), value)
    assert derived.real("table", value, CPU, 0) is made
    assert derived.extra_bytes == derived.copied_bytes == value.nbytes
    derived.clear()
    assert derived.extra_bytes == 0


def test_numbers_are_copied_to_the_device_when_the_table_stayed_behind() -> None:
    made = Derived().real("table", table(), torch.device("meta"), 0)
    assert (made.device.type, made.shape) == ("meta", (4, 8, 2))


def test_numbers_are_copied_anew_when_the_table_changed() -> None:
    derived, value = Derived(), table().t().contiguous().t()
    first = derived.real("table", value, CPU, 0)
    value.mul_(2)
    second = derived.real("table", value, CPU, 0)
    assert second is not first
    assert torch.equal(torch.view_as_complex(second), value)
    third = derived.real("table", value, CPU, 1)  # the module's tree changed
    assert third is not second
    fourth = derived.real("table", value.clone(), CPU, 1)
    assert fourth is not third
