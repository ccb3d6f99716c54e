import ctypes
from pathlib import Path

import pytest

from aotbuild.build.cuda_host import (
    HEADERS,
    driver_functions,
    find_headers,
    header_roots,
    make_cuda_host,
)
from aotbuild.errors import ToolchainError

CUDA_H = """
#define CUDA_VERSION {version}
#define cuMemGetInfo cuMemGetInfo_v2
#define cuLaunchKernel __CUDA_API_PTSZ(cuLaunchKernel)
CUresult CUDAAPI cuInit(unsigned int Flags);
CUresult CUDAAPI cuLaunchKernel(CUfunction f);
"""


def write_headers(folder: Path, headers=HEADERS, version=13000):
    for name in headers:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        text = CUDA_H.format(version=version) if name == "cuda.h" else f"// {folder}"
        (folder / name).write_text(text)
    return folder


def toolkit(root: Path, **kwargs):
    write_headers(root / "include", **kwargs)
    return root


def test_headers_come_from_the_first_root_that_has_them_all(tmp_path):
    part = toolkit(tmp_path / "part", headers=HEADERS[:3])
    whole = toolkit(tmp_path / "whole")
    assert find_headers("13.0", [tmp_path / "none", part, whole]) == ((whole / "include",), "13.0")


def test_headers_come_from_the_wheels_when_each_holds_a_part(tmp_path):
    write_headers(tmp_path / "cuda_runtime/include", HEADERS[:6], version=12080)
    write_headers(tmp_path / "cuda_nvcc/include", HEADERS[6:7])
    write_headers(tmp_path / "cuda_cccl/include", HEADERS[7:])
    folders, version = find_headers("12.8", [tmp_path])
    assert version == "12.8"
    assert [f.parent.name for f in folders] == ["cuda_cccl", "cuda_nvcc", "cuda_runtime"]


def test_headers_are_refused_when_of_another_cuda_and_the_wheels_are_named(tmp_path):
    old = toolkit(tmp_path / "old", version=12040)
    part = toolkit(tmp_path / "part", headers=HEADERS[:6])
    with pytest.raises(ToolchainError) as caught:
        find_headers("13.0", [old, part])
    text = str(caught.value)
    assert f"{old} is of CUDA 12.4" in text
    assert f"{part} lacks crt/host_defines.h, nv/target" in text
    assert "pip install 'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-crt==13.0.*'" in text


def test_headers_name_cuda_12s_wheels_when_torch_is_built_with_it():
    with pytest.raises(ToolchainError, match=r"none were found.*nvidia-cuda-nvcc-cu12==12\.8"):
        find_headers("12.8", [])


def test_roots_are_the_wheels_first_then_the_toolkit_that_is_named():
    roots = header_roots(Path("/site"), {"CUDA_HOME": "/opt/cuda", "CUDA_PATH": ""})
    assert roots[:2] == (Path("/site/nvidia"), Path("/opt/cuda"))


def test_driver_functions_are_those_declared_and_those_renamed():
    names = driver_functions(CUDA_H.format(version=13000))
    assert {"cuInit", "cuLaunchKernel", "cuLaunchKernel_ptsz", "cuMemGetInfo_v2"} <= set(names)
    assert names == tuple(sorted(names))


def test_host_has_headers_and_a_library_of_the_drivers_name_when_made(tmp_path):
    root = toolkit(tmp_path / "toolkit")
    host = make_cuda_host(tmp_path / "home", torch_cuda="13.0", roots=[root])
    assert host.version == "13.0"
    assert (host.home / "include/nv/target").read_text() == f"// {root / 'include'}"
    library = ctypes.CDLL(str(host.stub / "libcuda.so"))
    assert library.cuLaunchKernel is not None
    assert b"libcuda.so.1\0" in (host.stub / "libcuda.so.1").read_bytes()


def test_host_is_the_same_when_made_twice_in_one_folder(tmp_path):
    root = toolkit(tmp_path / "toolkit")
    first = make_cuda_host(tmp_path / "home", torch_cuda="13.0", roots=[root])
    assert make_cuda_host(tmp_path / "home", torch_cuda="13.0", roots=[root]) == first


def test_environment_is_absolute_and_hides_real_gpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    host = make_cuda_host(Path("home"), torch_cuda="13.0", roots=[toolkit(tmp_path / "toolkit")])
    environment = host.environment(Path("cache"))
    assert environment["CUDA_HOME"] == str(tmp_path / "home")
    assert environment["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "cache")
    assert environment["CUDA_VISIBLE_DEVICES"] == ""


def test_host_is_refused_when_torch_is_built_for_the_cpu(tmp_path):
    with pytest.raises(ToolchainError, match=r"CPU alone.*pip install --force-reinstall.*torch"):
        make_cuda_host(tmp_path, torch_cuda=None, roots=[])


@pytest.mark.parametrize(
    ("compiler", "says"), [("no-such-gcc", "apt-get install"), ("false", "can't link")]
)
def test_host_is_refused_when_the_compiler_is_missing_or_fails(tmp_path, compiler, says):
    root = toolkit(tmp_path / "toolkit")
    with pytest.raises(ToolchainError, match=says):
        make_cuda_host(tmp_path / "home", torch_cuda="13.0", roots=[root], compiler=compiler)


@pytest.mark.cuda_build
def test_stub_has_what_the_driver_exports_when_made_from_real_headers(tmp_path):
    import importlib.util
    import os

    import torch

    site = Path(importlib.util.find_spec("torch").origin).parent.parent
    roots = header_roots(site, os.environ)
    host = make_cuda_host(tmp_path, torch_cuda=torch.version.cuda, roots=roots)
    library = ctypes.CDLL(str(host.stub / "libcuda.so.1"))
    for name in ("cuLaunchKernel", "cuModuleLoadData", "cuLaunchKernelEx", "cuMemAlloc_v2"):
        assert getattr(library, name) is not None
    assert host.version.split(".")[0] == torch.version.cuda.split(".")[0]
