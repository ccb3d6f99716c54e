"""What the C++ of a CUDA package is compiled with where there is no driver: headers, a stub.

The environment of the build process is put together here; `host` finds the C++ compiler.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aotbuild.errors import ToolchainError

HEADERS = (
    "cuda.h",
    "cuda_runtime.h",
    "cuda_runtime_api.h",
    "cuda_bf16.h",
    "cuda_fp16.h",
    "cuda_fp8.h",
    "crt/host_defines.h",
    "nv/target",
)
"""What AOTInductor's runtime headers include, directly or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaHost:
    """A folder that serves as CUDA_HOME for compiling and linking, never for running.

    Attributes:
        home: holds `include` and `lib64`.
        version: of the headers, "13.0".
    """

    home: Path
    version: str

    @property
    def stub(self) -> Path:
        """The folder with `libcuda.so.1`, for linking and for looking symbols up."""
        return self.home / "lib64"

    def environment(self, cache: Path) -> dict[str, str]:
        """The variables that a build process for a virtual GPU must start with.

        Args:
            cache: a fresh folder for this one build.
        """
        cache = cache.absolute()  # torch 2.11 and 2.12 fail on a relative one
        return {
            "CUDA_HOME": str(self.home.absolute()),
            "CUDA_VISIBLE_DEVICES": "",
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",  # compile workers know no virtual GPU
            "TRITON_CACHE_DIR": str(cache / "triton"),
        }


def make_cuda_host(
    folder: Path, *, torch_cuda: str | None, roots: Sequence[Path], compiler: str = "gcc"
) -> CudaHost:
    """Lay out a CUDA_HOME in `folder`: the headers by links, and a stub of the driver's library.

    Args:
        folder: where to; kept as long as builds run.
        torch_cuda: the CUDA version torch was built with; None for a CPU build.
        roots: see `header_roots`.
        compiler: a C compiler, for the stub.

    Raises:
        ToolchainError: a CPU build of torch, no headers of that CUDA, or no compiler.
    """
    if torch_cuda is None:
        raise ToolchainError(
            "This torch is built for the CPU alone and can't compile for a GPU. Install a CUDA "
            "build (no GPU is needed), the package torch of PyPI: `pip uninstall torch`, then "
            "`pip install torch`."
        )
    sources, version = find_headers(torch_cuda, roots)
    include, library = folder / "include", folder / "lib64"
    include.mkdir(parents=True, exist_ok=True)
    library.mkdir(exist_ok=True)
    for source in reversed(sources):
        _link_entries(source, include)
    declared = driver_functions((include / "cuda.h").read_text("utf-8", "replace"))
    _compile_stub(library, declared, compiler)
    return CudaHost(home=folder, version=version)


def header_roots(site_packages: Path, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Where headers may lie: torch's own wheels first, then CUDA_HOME and the usual toolkits."""
    named = [Path(environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    usual = sorted(Path("/usr/local").glob("cuda*"), reverse=True)
    return (site_packages / "nvidia", *named, *usual)


def find_headers(torch_cuda: str, roots: Sequence[Path]) -> tuple[tuple[Path, ...], str]:
    """The include folders of the first root that has all headers of this CUDA, and their version.

    A root is a toolkit (`include` below it) or the wheels' `nvidia` folder, whose packages each
    hold a part (`cu13/include`, or `cuda_runtime/include` and its neighbours).

    Raises:
        ToolchainError: none has; names the packages to install.
    """
    major = torch_cuda.split(".")[0]
    found = []
    for root in roots:
        folders = tuple(
            folder
            for pattern in ("include", f"cu{major}/include", "cuda_*/include")
            for folder in sorted(root.glob(pattern))
        )
        missing = [h for h in HEADERS if not any((folder / h).is_file() for folder in folders)]
        if "cuda.h" in missing:
            continue
        version = _cuda_version(folders)
        if not missing and version.split(".")[0] == major:
            return folders, version
        lack = f"lacks {', '.join(missing)}" if missing else f"is of CUDA {version}"
        found.append(f"{root} {lack}")
    raise ToolchainError(
        f"The C++ headers of CUDA {torch_cuda} are needed to build for a GPU; "
        f"{'; '.join(found) or 'none were found'}. `pip install {_wheels(torch_cuda)}` brings "
        "them, or set CUDA_HOME to a toolkit of that version."
    )


def driver_functions(cuda_h: str) -> tuple[str, ...]:
    """The names that `libcuda.so.1` exports, as its header declares or renames them; sorted."""
    declared = re.findall(r"\bCUDAAPI\s+(cu[A-Z]\w*)\s*\(", cuda_h)
    renamed = re.findall(r"#\s*define\s+cu[A-Z]\w*\s+(?:__CUDA_API_\w+\()?(cu[A-Z]\w*)", cuda_h)
    streams = [f"{name}_ptsz" for name in (*declared, *renamed)]
    return tuple(sorted({*declared, *renamed, *streams}))


def _compile_stub(library: Path, functions: Sequence[str], compiler: str) -> None:
    source = "".join(f"void {name}(void) {{}}\n" for name in functions)
    target = library / "libcuda.so.1"
    command = [compiler, "-shared", "-fPIC", "-w", "-fno-builtin", "-nostdlib"]
    command += ["-Wl,-soname,libcuda.so.1", "-x", "c", "-", "-o", str(target)]
    try:
        subprocess.run(command, input=source, text=True, check=True, capture_output=True)
    except FileNotFoundError as e:
        raise ToolchainError(
            f"No C compiler `{compiler}` was found; `apt-get install g++` or set CC."
        ) from e
    except subprocess.CalledProcessError as e:
        raise ToolchainError(f"`{compiler}` can't link a shared library: {e.stderr}") from e
    plain = library / "libcuda.so"
    if not plain.is_symlink():
        plain.symlink_to(target.name)


def _link_entries(source: Path, include: Path) -> None:
    """Link each entry of `source` into `include`; folders that several sources have are merged."""
    for entry in sorted(source.iterdir()):
        place = include / entry.name
        if entry.is_dir():
            place.mkdir(exist_ok=True)
            _link_entries(entry, place)
        else:
            place.unlink(missing_ok=True)
            place.symlink_to(entry.absolute())


def _cuda_version(folders: Sequence[Path]) -> str:
    header = next(f / "cuda.h" for f in folders if (f / "cuda.h").is_file())
    match = re.search(r"#define CUDA_VERSION (\d+)", header.read_text("utf-8", "replace"))
    number = int(match[1]) if match else 0
    return f"{number // 1000}.{number % 1000 // 10}"


def _wheels(torch_cuda: str) -> str:
    major = int(torch_cuda.split(".")[0])
    names = [f"nvidia-cuda-{part}" for part in ("runtime", "crt", "cccl")]
    if major < 13:
        names = [f"nvidia-cuda-{part}-cu{major}" for part in ("runtime", "nvcc", "cccl")]
    return " ".join(f"'{name}=={torch_cuda}.*'" for name in names)
