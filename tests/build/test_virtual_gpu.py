import json

import pytest
import torch

from aotbuild.build import virtual_device
from aotbuild.build.kernels import KernelRecord, KernelStats
from aotbuild.build.virtual_gpu import gpu_options, virtual_gpu, without_device
from aotbuild.gpus import GPUS, find_gpu

UNITS = [("vae.decode", "a100"), ("unet", "h100")]


def record(name, **figures):
    figures = {"registers": 32, "spills": 0, "shared_bytes": 0, **figures}
    return KernelRecord(name=name, digest="0" * 16, config={"XBLOCK": 8}, **figures)


def test_stats_sum_up_what_a_manifest_records():
    stats = KernelStats(configurations=3)
    stats.kernels += [record("b", spills=2, registers=255), record("a", shared_bytes=4096)]
    assert stats.to_json() == {
        "kernels": 2,
        "configurations": 3,
        "spilling": ["b"],
        "registers_max": 255,
        "shared_bytes_max": 4096,
    }


def test_stats_are_zero_when_nothing_was_compiled():
    assert KernelStats().to_json()["registers_max"] == 0


def test_without_device_drops_what_would_measure_and_says_so():
    options = {
        "conv_1x1_as_mm": True,
        "coordinate_descent_check_all_directions": True,
        "coordinate_descent_tuning": True,
        "epilogue_fusion": False,
        "max_autotune_gemm": True,
        "shape_padding": True,
    }
    kept, dropped = without_device(options)
    assert kept == {"conv_1x1_as_mm": True, "epilogue_fusion": False}
    assert dropped == (
        "coordinate_descent_check_all_directions",
        "coordinate_descent_tuning",
        "max_autotune_gemm",
        "shape_padding",
    )


def test_options_are_known_to_this_torch_and_hold_no_paths():
    import torch._inductor.config as config

    options = gpu_options(find_gpu("a100"))
    assert set(options) <= set(config.get_config_copy())
    assert options["cuda.arch"] == "80"
    assert options["aot_inductor.package_constants_in_so"] is False
    assert not any(isinstance(v, str) and "/" in v for v in options.values())


@pytest.mark.parametrize("name", GPUS)
def test_properties_are_those_of_the_table(name):
    gpu = find_gpu(name)
    properties = virtual_device.properties(gpu)
    assert properties.multi_processor_count == gpu.sms
    assert properties.shared_memory_per_block_optin == gpu.shared_memory_bytes
    assert properties.max_threads_per_multi_processor == gpu.architecture.threads_per_sm


@pytest.mark.cuda_build
@pytest.mark.parametrize("name", ["t4", "a100", "l4", "h100", "b200", "rtx5090"])
def test_everyone_who_asks_sees_the_gpu_while_it_is_there(name):
    import triton
    from torch._dynamo.device_interface import get_interface_for_device
    from torch._inductor.runtime.hints import DeviceProperties
    from torch.utils._triton import has_triton

    gpu, device = find_gpu(name), torch.device("cuda", 0)
    with virtual_gpu(gpu):
        assert torch.cuda.get_device_capability() == (gpu.major, gpu.minor)
        assert torch.cuda.get_device_name() == gpu.title
        assert get_interface_for_device("cuda").get_compute_capability() == gpu.capability
        assert get_interface_for_device("cuda:0").Worker.get_device_properties(0).major == gpu.major
        assert DeviceProperties.create(device).multi_processor_count == gpu.sms
        assert triton.runtime.driver.active.get_current_target().arch == gpu.capability
        assert has_triton()
        assert not torch.cuda.is_available()


@pytest.mark.cuda_build
def test_answers_that_were_memoised_are_forgotten_on_entry_and_exit():
    from torch._inductor.runtime.hints import DeviceProperties
    from torch.utils._triton import has_triton

    device = torch.device("cuda", 0)
    assert not has_triton()
    for name in ("a100", "h100"):
        with virtual_gpu(find_gpu(name)):
            assert has_triton()
            assert DeviceProperties.create(device).cc == find_gpu(name).capability
    assert not has_triton()


@pytest.mark.cuda_build
def test_everything_is_as_before_when_the_build_fails(snapshot):
    before, during = snapshot(), []

    def fail():
        with virtual_gpu(find_gpu("a100")):
            during.append(snapshot())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert during != [before]
    assert snapshot() == before


@pytest.mark.cuda_build
@pytest.mark.parametrize(("unit", "gpu"), UNITS)
def test_everything_is_as_before_when_a_unit_was_compiled(built_across, unit, gpu):
    seen = built_across(unit, gpu)
    assert seen["before"] == seen["after"]
    same = {name for name in seen["before"] if seen["before"][name] == seen["during"][name]}
    assert same == {"available"}


@pytest.mark.cuda_build
@pytest.mark.parametrize(("unit", "gpu", "attention"), [(*UNITS[0], "flash"), (*UNITS[1], "cudnn")])
def test_unit_compiles_with_the_gpus_attention_and_in_bounds(built_across, unit, gpu, attention):
    seen = built_across(unit, gpu)
    assert set(seen["attention"]) == {attention}
    assert seen["stats"]["kernels"] > 10
    assert seen["stats"]["shared_bytes_max"] <= find_gpu(gpu).shared_memory_bytes
    assert seen["stats"]["configurations"] < 2 * seen["stats"]["kernels"]
    assert seen["peak_mib"] < 2048


@pytest.mark.cuda_build
@pytest.mark.slow
def test_unit_has_the_same_bytes_when_compiled_in_another_folder(
    built_across, compile_across, tmp_path
):
    again = compile_across(*UNITS[0], tmp_path / "another")
    assert again["sha256"] == built_across(*UNITS[0])["sha256"]


@pytest.mark.cuda_build
@pytest.mark.slow
def test_measured_choice_is_taken_when_the_tuning_table_has_it(
    built_across, compile_across, tmp_path
):
    name, (digest, config, _) = next(
        (n, k) for n, k in built_across(*UNITS[0])["kernels"].items() if "XBLOCK" in k[1]
    )
    measured = {**config, "num_warps": 8 if config["num_warps"] != 8 else 2}
    table = tmp_path / "tuning.json"
    table.write_text(json.dumps({digest: measured}))
    tuned = compile_across(*UNITS[0], tmp_path / "tuned", str(table))
    assert tuned["kernels"][name][1] == measured
    assert tuned["sha256"] != built_across(*UNITS[0])["sha256"]
