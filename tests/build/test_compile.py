"""Inductor's options as they count in a key, and compiling a real module for each CPU level."""

from __future__ import annotations

import pytest
import torch
import torch._inductor.cpu_vec_isa as vec
import torch._inductor.graph as graph

from aotbuild.build import compile as compiling
from aotbuild.build.compile import FIXED_OPTIONS, check_options, host_level, options_for
from aotbuild.errors import RecipeError


def test_options_keep_weights_and_threads_outside_when_a_recipe_says_nothing() -> None:
    options = options_for("x86-64-v3", "cpu", {})
    assert options["aot_inductor.package_constants_in_so"] is False
    assert options["always_keep_tensor_constants"] is True
    assert options["cpp.dynamic_threads"] is True
    assert options["cpp.simdlen"] == 256


@pytest.mark.parametrize(("level", "bits"), [("x86-64-v2", 1), ("x86-64-v4", 512)])
def test_options_follow_the_level_when_it_is_another(level: str, bits: int) -> None:
    assert options_for(level, "cpu", {})["cpp.simdlen"] == bits


def test_options_hold_no_path_whatever_the_machine() -> None:
    values = map(str, options_for("x86-64-v3", "cpu", {"epilogue_fusion": False}).values())
    assert not [v for v in values if "/" in v]


def test_option_is_refused_with_the_nearest_when_torch_does_not_know_it() -> None:
    with pytest.raises(RecipeError, match="did you mean 'epilogue_fusion'"):
        check_options({"epilog_fusion": False})


@pytest.mark.parametrize("name", sorted(FIXED_OPTIONS))
def test_option_is_refused_when_aotbuild_must_set_it(name: str) -> None:
    with pytest.raises(RecipeError, match="sets this option itself"):
        check_options({name: True})


def test_host_code_is_for_v3_when_the_target_is_a_gpu() -> None:
    assert host_level("sm_80") == "x86-64-v3"
    assert host_level("x86-64-v4") == "x86-64-v4"


@pytest.mark.parametrize(("level", "name"), [("x86-64-v4", "VecAVX512"), ("x86-64-v3", "VecAVX2")])
def test_vector_width_is_the_targets_whatever_this_cpu_has(level: str, name: str) -> None:
    before = vec.valid_vec_isa_list
    with compiling._vector_isa(level):
        (isa,) = vec.valid_vec_isa_list()
        assert type(isa).__name__ == name
        assert "vnni" not in isa.build_arch_flags()
    assert vec.valid_vec_isa_list is before


def test_constants_are_told_apart_by_identity_and_put_back_after() -> None:
    before = graph.is_same_tensor
    a = torch.zeros(2)
    with compiling._tensors_compared_by_identity():
        assert graph.is_same_tensor(a, a)
        assert not graph.is_same_tensor(a, a.clone())
    assert graph.is_same_tensor is before
