import subprocess

import pytest

from aotbuild.build.cubins import (
    check_cubins,
    check_symbols,
    cuobjdump,
    embedded_cubins,
    read_cubin,
)
from aotbuild.errors import BuildError, ToolchainError
from aotbuild.gpus import find_gpu

PTX = """
.version 8.7
.target {arch}
.address_size 64
.visible .entry {name}(.param .u64 place) {{
    .shared .align 4 .b8 room[{shared}];
    .reg .b64 %address;
    .reg .b32 %value;
    ld.param.u64 %address, [place];
    ld.shared.b32 %value, [room];
    st.global.b32 [%address], %value;
    ret;
}}
"""


def cubin(arch, name="kernel", shared=1024):
    """Machine code by the assembler that Triton brings."""
    source = PTX.format(arch=arch, name=name, shared=shared)
    assembler = cuobjdump().parent / "ptxas"
    done = subprocess.run(
        [assembler, "-arch", arch, "/dev/stdin", "-o", "/dev/stdout"],
        input=source.encode(),
        capture_output=True,
        check=True,
    )
    return done.stdout


def library(tmp_path, *images):
    """Something that holds images as a compiled library does: between other bytes."""
    host = b"\x7fELF\x02\x01\x01" + b"\0" * 11 + (62).to_bytes(2, "little") + b"\0" * 44
    path = tmp_path / "model.so"
    path.write_bytes(host + b"".join(b"\0" * 24 + image for image in images) + b"\0" * 99)
    return path


def test_cubins_are_none_when_a_library_is_for_the_cpu(tmp_path):
    assert list(embedded_cubins(library(tmp_path).read_bytes())) == []


def test_cubins_are_none_when_a_library_ends_inside_a_header():
    assert list(embedded_cubins(b"\0\0\x7fELF\x02\x01\x01")) == []


@pytest.mark.cuda_build
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_cubin_says_what_it_is_for_and_what_it_takes(arch):
    (kernel,) = read_cubin(cubin(arch, "wanted", shared=2048))
    assert (kernel.name, kernel.arch) == ("wanted", arch)
    assert 0 < kernel.registers < 64
    assert kernel.spilled_bytes == 0
    assert 2048 <= kernel.shared_bytes < 4096


@pytest.mark.cuda_build
def test_cubin_is_refused_when_damaged():
    with pytest.raises(ToolchainError, match="cuobjdump can't read"):
        read_cubin(cubin("sm_80")[:200])


@pytest.mark.cuda_build
def test_library_passes_when_all_its_code_is_for_the_gpu(tmp_path):
    images = [cubin("sm_80", "second"), cubin("sm_80", "first")]
    path = library(tmp_path, *images)
    assert list(embedded_cubins(path.read_bytes())) == images
    report = check_cubins(path, find_gpu("a100"))
    assert (report.arch, report.cubins) == ("sm_80", 2)
    assert [k.name for k in report.kernels] == ["first", "second"]
    assert report.spilling == ()
    assert report.to_json()["kernels"][0]["name"] == "first"


@pytest.mark.cuda_build
@pytest.mark.parametrize("gpu", ["a10", "l4", "h100"])
def test_library_is_refused_when_a_kernel_is_for_another_gpu(tmp_path, gpu):
    own = {"a10": "sm_86", "l4": "sm_89", "h100": "sm_90a"}[gpu]
    path = library(tmp_path, cubin(own), cubin("sm_80", "stray"))
    with pytest.raises(BuildError, match=r"1 of 2 kernels aren't for.*stray \(sm_80\)"):
        check_cubins(path, find_gpu(gpu))


@pytest.mark.cuda_build
@pytest.mark.parametrize(("unit", "gpu"), [("vae.decode", "a100"), ("unet", "h100")])
def test_package_holds_the_kernels_that_were_compiled_and_loads(built_across, unit, gpu):
    seen = built_across(unit, gpu)
    report = check_cubins(seen["library"], find_gpu(gpu))
    assert report.arch == {"a100": "sm_80", "h100": "sm_90a"}[gpu]
    assert report.cubins == seen["stats"]["kernels"]
    assert max(k.registers for k in report.kernels) == seen["stats"]["registers_max"]
    assert list(report.spilling) == seen["stats"]["spilling"]
    check_symbols(seen["library"], seen["stub"])


@pytest.mark.cuda_build
def test_symbols_are_refused_when_the_drivers_library_is_missing(built_across):
    seen = built_across("vae.decode", "a100")
    with pytest.raises(BuildError, match=r"doesn't load with this torch.*libcuda\.so\.1"):
        check_symbols(seen["library"])


def test_symbols_are_refused_when_one_is_nowhere(tmp_path):
    path = tmp_path / "model.so"
    source = "void nowhere_to_be_found(void); void f(void) { nowhere_to_be_found(); }"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    with pytest.raises(BuildError, match="undefined symbol: nowhere_to_be_found"):
        check_symbols(path)
