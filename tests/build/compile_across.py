"""Compile one unit of `tiny` for a GPU that isn't there; run as a process of its own.

    python compile_across.py UNIT GPU FOLDER [TUNING.json]      prints what was seen as JSON

Leaves `package.pt2` and `model.so` in FOLDER.
"""

import json
import os
import resource
import sys
import warnings
import zipfile
from importlib.util import find_spec
from pathlib import Path

from aotbuild.build.cuda_host import header_roots, make_cuda_host


def snapshot():
    """What a virtual GPU changes while it is there."""
    import torch
    import torch._inductor.graph as graph
    import torch.utils._triton as triton_utils
    import triton
    from torch._dynamo import device_interface
    from torch._inductor.codegen import common
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    device_interface.get_interface_for_device("cuda")
    common.init_backend_registration()
    interfaces = device_interface.device_interfaces
    return {
        "available": torch.cuda.is_available(),
        "interfaces": {name: repr(interfaces[name]) for name in sorted(interfaces)},
        "codegens": {n: repr(c) for n, c in sorted(common.device_codegens.items())},
        "driver": repr(triton.runtime.driver._active),
        "backends": {n: repr(b) for n, b in sorted(triton.backends.backends.items())},
        "line_info": triton.knobs.compilation.disable_line_info,
        "properties": repr(torch.cuda.get_device_properties),
        "same_tensor": repr(graph.is_same_tensor),
        "precompile": repr(CachingAutotuner._precompile_worker),
        "has_triton": triton_utils.has_triton(),
    }


def main(unit, name, folder, tuning=None):
    warnings.simplefilter("ignore")
    work = folder / "work"
    site = Path(find_spec("torch").origin).parent.parent
    import torch.version

    roots = header_roots(site, os.environ)
    host = make_cuda_host(work / "cuda", torch_cuda=torch.version.cuda, roots=roots)
    os.environ.update(host.environment(work / "cache"))

    import torch

    from aotbuild.build import package
    from aotbuild.build.attention import lower_attention
    from aotbuild.build.compile import options_for
    from aotbuild.build.export import export_unit
    from aotbuild.build.host import default_prefix_maps, find_toolchain, write_compiler_wrapper
    from aotbuild.build.prepare import prepare
    from aotbuild.build.rehearse import rehearse
    from aotbuild.build.virtual_gpu import virtual_gpu
    from aotbuild.gpus import find_gpu
    from aotbuild.recipe import load_configs, load_recipe, parse_resolution

    gpu = find_gpu(name)
    recipe = load_recipe("tiny").override(dtype="bf16" if gpu.major >= 8 else "fp16")
    rehearsal = rehearse(
        recipe,
        load_configs(recipe.architecture),
        resolution=parse_resolution(recipe.call.resolution),
        batch=1,
        variant=next(iter(recipe.call.variants), "default"),
    )
    recorded = rehearsal.units[unit][0]
    module = recorded.module()
    prepare(module, recipe.components[recorded.component])
    program = export_unit(module, recorded, device="cuda:0").program
    attention = lower_attention(program, gpu)
    options = options_for(gpu.arch, "cuda", {})
    wrapper = write_compiler_wrapper(
        find_toolchain(),
        work / "bin",
        march="x86-64-v3",
        prefix_maps=default_prefix_maps(Path(torch.__file__).parent, work),
    )
    os.environ["CXX"] = str(wrapper)
    before = snapshot()
    with virtual_gpu(gpu, tuning=tuning) as stats:
        during = snapshot()
        raw = torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(work / "raw.pt2"),
            inductor_configs={**options, "cpp.cxx": (str(wrapper),)},
        )
    packed = package.repack(Path(raw), folder / "package.pt2", forbidden=(str(folder),))
    with zipfile.ZipFile(folder / "package.pt2") as archive:
        (folder / "model.so").write_bytes(archive.read(packed.library_record.name))
    usage = max(resource.getrusage(w).ru_maxrss for w in (0, -1))
    print(
        json.dumps(
            {
                "attention": attention,
                "stats": stats.to_json(),
                "kernels": {k.name: [k.digest, k.config, k.registers] for k in stats.kernels},
                "before": before,
                "during": during,
                "after": snapshot(),
                "sha256": packed.library_record.sha256,
                "stub": str(host.stub),
                "peak_mib": usage >> 10,
            }
        )
    )


if __name__ == "__main__":
    main(
        sys.argv[1],
        sys.argv[2],
        Path(sys.argv[3]).absolute(),
        json.loads(Path(sys.argv[4]).read_text()) if len(sys.argv) > 4 else None,
    )
