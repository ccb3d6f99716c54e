import subprocess
import sys

import pytest

from aotbuild.errors import TargetError
from aotbuild.gpus import ARCHITECTURES, GPUS, check_gpu, find_device, find_gpu

NAMES = ["v100", "t4", "a100", "a10", "a10g", "rtx3090", "l4", "l40s", "rtx4090", "h100", "h200"]
NAMES += ["b200", "rtx5090"]


def test_table_holds_every_gpu_of_the_plan_when_listed():
    assert list(GPUS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_gpu_is_found_by_name_and_its_architecture_finds_a_default_of_its_kind(name):
    gpu = find_gpu(name)
    assert gpu.name == name
    assert find_gpu(gpu.arch).arch == gpu.arch
    assert gpu.shared_memory_bytes < gpu.shared_memory_sm_bytes or gpu.major == 7
    assert gpu.source


@pytest.mark.parametrize(
    ("arch", "block_kib", "threads"),
    [
        ("sm_70", 96, 2048),
        ("sm_75", 64, 1024),
        ("sm_80", 163, 2048),
        ("sm_86", 99, 1536),
        ("sm_89", 99, 1536),
        ("sm_90", 227, 2048),
        ("sm_100", 227, 2048),
        ("sm_120", 99, 1536),
    ],
)
def test_architecture_has_the_programming_guides_figures_when_found(arch, block_kib, threads):
    gpu = find_gpu(arch)
    assert gpu.arch == arch
    assert gpu.shared_memory_bytes == block_kib * 1024
    assert gpu.architecture.threads_per_sm == threads


def test_every_architecture_has_a_default_gpu_of_its_own():
    for capability, entry in ARCHITECTURES.items():
        gpu = find_gpu(entry.default)
        assert (gpu.major, gpu.minor) == capability


@pytest.mark.parametrize("name", NAMES)
def test_memory_clock_gives_the_published_bandwidth_when_computed_back(name):
    gpu = find_gpu(name)
    back = 2 * gpu.memory_clock_khz * 1000 * gpu.memory_bus_bits / 8 / 1e9
    assert back == pytest.approx(gpu.bandwidth_gb_s, rel=1e-4)


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("a1000", "a100"), ("rtx409", "rtx4090"), ("sm_81", "sm_8"), ("RTX-4091", "rtx409")],
)
def test_find_gpu_names_the_nearest_when_unknown(wrong, near):
    with pytest.raises(TargetError, match=rf"{wrong}.*Did you mean {near}"):
        find_gpu(wrong)


def test_find_gpu_lists_what_is_known_when_nothing_is_near():
    with pytest.raises(TargetError, match=r"zzz.*Known are v100, t4.*`auto`"):
        find_gpu("zzz")


def test_find_gpu_reads_names_as_people_write_them():
    assert find_gpu("RTX 4090") == find_gpu("rtx-4090") == GPUS["rtx4090"]


@pytest.mark.parametrize(
    ("title", "capability", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", (8, 0), "a100"),
        ("NVIDIA A100-PCIE-40GB", (8, 0), "a100"),
        ("NVIDIA A10G", (8, 6), "a10g"),
        ("NVIDIA GeForce RTX 3090", (8, 6), "rtx3090"),
        ("NVIDIA RTX A6000", (8, 6), "a10"),
        ("NVIDIA H200", (9, 0), "h200"),
        ("Tesla V100-SXM2-16GB", (7, 0), "v100"),
    ],
)
def test_device_finds_its_row_when_it_is_there(title, capability, name):
    assert find_device(title, *capability).name == name


def test_device_is_refused_when_its_architecture_is_unknown():
    with pytest.raises(TargetError, match=r"GTX 1080 has compute capability 6\.1"):
        find_device("NVIDIA GeForce GTX 1080", 6, 1)


@pytest.mark.parametrize(
    ("name", "dtype", "cuda", "triton", "says"),
    [
        ("t4", "bf16", "13.0", "3.8.0", r"no bf16.*--dtype fp16"),
        ("v100", "bf16", "12.6", "3.8.0", r"no bf16.*--dtype fp16"),
        ("t4", "tf32", "13.0", "3.8.0", r"no tf32.*--dtype fp32"),
        ("v100", "fp16", "13.0", "3.8.0", r"CUDA up to 12\.9.*CUDA 13\.0"),
        ("b200", "bf16", "12.6", "3.8.0", r"CUDA from 12\.8.*CUDA 12\.6"),
        ("rtx5090", "bf16", "13.0", "3.2.0", r"needs Triton 3\.3 or later, found 3\.2\.0"),
        ("a100", "bf16", "13.0", None, r"pip install triton"),
        ("a100", "bf16", None, None, r"CUDA build of torch.*package torch of PyPI"),
    ],
)
def test_check_refuses_what_cannot_be_built_and_says_what_to_do(name, dtype, cuda, triton, says):
    with pytest.raises(TargetError, match=says):
        check_gpu(find_gpu(name), dtype, cuda, triton)


@pytest.mark.parametrize(
    ("name", "dtype", "cuda"),
    [
        ("t4", "fp16", "13.0"),
        ("v100", "fp16", "12.6"),
        ("a100", "bf16", "13.0"),
        ("a100", "bf16", "12.6"),
        ("h100", "tf32", "13.0"),
        ("rtx5090", "bf16", "12.8"),
    ],
)
def test_check_passes_when_the_gpu_can(name, dtype, cuda):
    check_gpu(find_gpu(name), dtype, cuda, "3.6.0")


def test_import_brings_no_torch():
    code = "import sys, aotbuild.gpus; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
