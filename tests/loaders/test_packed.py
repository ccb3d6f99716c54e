from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import aotbuild
from aotbuild.cache.store import Store
from aotbuild.cache.weight_files import find_weights
from aotbuild.errors import (
    LoadError,
    NoArtifactError,
    ReleasedError,
    SignatureMismatch,
    SourceError,
    UsageError,
)
from aotbuild.loaders.packed import map_constants

from . import making, nets, quantized
from .conftest import Kit
from .test_freeing import Wrapper

COMMIT = "c" * 40
HUB = {"checkpoint": "org/model", "revision": COMMIT, "digest": "2" * 64}


def packed(kit: Kit, module: Any = None, **others: Any) -> Any:
    """An int8 artifact in the kit's store with the weights of `module` packed."""
    return quantized.write(kit, pack=module or quantized.stock(seed=5), **others)


def hollow() -> Any:
    """The module without weights, as a service builds it: parameters on meta, buffers real.

    Those that no checkpoint holds are random in this class, so the seed is the packed one's.
    """
    module = quantized.stock(seed=5)
    for owner in module.modules():
        for name, parameter in list(owner._parameters.items()):
            if parameter is not None:
                owner._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=False)
    return module


def stand_in(kit: Kit, **options: Any) -> aotbuild.StandIn:
    made = aotbuild.load_component(kit.store.root, store=kit.libraries, **options)
    kit.loaded.append(made.loaded)
    return made


def expected(kit: Kit, module: Any, **changes: Any) -> Any:
    """What the artifact answers when it is bound to real weights."""
    loaded = kit.load(net=module)
    answer = module(**quantized.call(**changes))[0]
    loaded.restore()
    return answer


# Without weights


def test_component_without_weights_answers_as_with_them_when_constants_are_packed(kit: Kit) -> None:
    packed(kit)
    answer = expected(kit, quantized.stock(seed=5))
    module = hollow()
    loaded = kit.load(net=module)

    assert torch.equal(module(**quantized.call())[0], answer)
    assert "MB of packed constants, and no weights of its own" in loaded.report()
    assert loaded.metrics()["net"]["packed_bytes"] > 0
    loaded.refresh()
    assert torch.equal(module(**quantized.call())[0], answer)


@pytest.mark.parametrize("change", ["buffer", "attribute", "shape"])
def test_packed_artifact_is_refused_when_the_module_changed_its_own_tables(
    kit: Kit, change: str
) -> None:
    packed(kit)
    module = hollow()
    if change == "buffer":
        module.lost *= 2
    elif change == "attribute":
        module.rope.angles = module.rope.angles + 1
    else:
        module.register_buffer("lost", module.lost[:4], persistent=False)

    with pytest.raises(NoArtifactError, match=r"(lost|angles) isn't what was packed"):
        kit.load(net=module)


def test_packed_artifact_serves_when_the_modules_tables_are_rounded_or_not_there(kit: Kit) -> None:
    packed(kit)
    answer = expected(kit, quantized.stock(seed=5))
    module = hollow()
    module.lost = torch.nextafter(module.lost, torch.ones(()))
    module.kept = torch.zeros_like(module.kept)  # a checkpoint holds it, so the packed one counts
    kit.load(net=module)
    assert torch.equal(module(**quantized.call())[0], answer)

    bare = hollow()
    bare.lost = bare.lost.to("meta")
    kit.load(net=bare)
    assert torch.equal(bare(**quantized.call())[0], answer)


def test_stand_in_answers_as_the_component_when_it_has_no_module(kit: Kit) -> None:
    packed(kit)
    answer = expected(kit, quantized.stock(seed=5))
    made, call = stand_in(kit), quantized.call()

    assert torch.equal(made(**call)[0], answer)
    sample, timestep = call.pop("sample"), call.pop("timestep")
    assert torch.equal(made(sample, timestep, **call)[0], answer)
    assert torch.equal(made(sample, timestep, 1.0, None, False)[0], answer)
    assert "2 calls" not in made.report()
    assert "3 calls" in made.report()


def test_stand_in_describes_the_component_when_it_is_asked(kit: Kit) -> None:
    packed(kit)
    made = stand_in(kit)

    assert (made.config.width, made.config["sizes"]) == (16, [1, 2])
    assert (made.dtype, made.device) == (torch.float32, torch.device("cpu"))
    assert not hasattr(made.config, "height")
    assert (made.mix.in_features, made.mix.out_features, made.conv_in.in_channels) == (16, 16, 4)
    assert not hasattr(made, "missing")
    assert not hasattr(made.embed, "in_channels")
    assert list(made.parameters()) == []
    assert made.eval().to("cpu") is made


def test_stand_in_refuses_to_be_changed_when_nothing_would_come_of_it(kit: Kit) -> None:
    packed(kit)
    made = stand_in(kit)

    for name in ("forward", "scale", "config", "dtype", "mix"):
        with pytest.raises(AttributeError, match="would change nothing"):
            setattr(made, name, lambda *_: None)
    with pytest.raises(AttributeError, match="would change nothing"):
        made.mix.in_features = 3
    for change in (
        lambda: setattr(made.config, "width", 3),
        lambda: made.config.update(width=3),
        lambda: made.config.pop("width"),
        lambda: made.config.__setitem__("width", 3),
    ):
        with pytest.raises(TypeError, match="would change nothing"):
            change()
    assert copy.deepcopy(made.config) == pickle.loads(pickle.dumps(made.config)) == made.config
    assert made.train().eval().requires_grad_(False)(**quantized.call())
    made.loaded.restore()


# Dynamo looks into the loader's own code, finds what it can't trace, and runs it as it is.
@pytest.mark.filterwarnings("ignore:Dynamo:UserWarning")
def test_stand_in_names_the_reason_when_it_is_exported_and_serves_when_compiled(kit: Kit) -> None:
    packed(kit)
    made, call = stand_in(kit), quantized.call()

    with pytest.raises(ReleasedError, match="never given weights"):
        torch.export.export(made, (), call, strict=False)
    assert torch.equal(torch.compile(made, backend="eager")(**call)[0], made(**call)[0])
    assert made.loaded.metrics()["net"]["fallbacks"] == {}


def test_swapped_module_is_exported_from_eager_when_it_has_weights(kit: Kit) -> None:
    packed(kit)
    module, call = quantized.stock(seed=5), quantized.call()
    answer = module(**call)[0]
    kit.load(net=module)

    program = torch.export.export(module, (), call, strict=False)
    torch.testing.assert_close(program.module()(**call)[0], answer)


def test_stand_in_refuses_a_call_when_no_artifact_covers_it(kit: Kit) -> None:
    packed(kit)
    made, call = stand_in(kit), quantized.call()

    with pytest.raises(SignatureMismatch, match="return_dict is True, not False"):
        made(call["sample"], call["timestep"])
    with pytest.raises(SignatureMismatch, match="sample is 2x4x8x8"):
        made(**{**call, "sample": torch.zeros(2, 4, 8, 8)})
    with pytest.raises(TypeError, match="timestep"):
        made(call["sample"])
    with pytest.raises(TypeError, match="surplus"):
        made(**call, surplus=1)
    assert made.train().eval()(**call)


def test_call_without_weights_is_refused_when_no_artifact_covers_it(kit: Kit) -> None:
    packed(kit)
    module = hollow()
    kit.load(net=module)  # whatever `fallback` says

    with pytest.raises(SignatureMismatch, match="sample is 2x4x8x8"):
        module(**{**quantized.call(), "sample": torch.zeros(2, 4, 8, 8)})
    with pytest.raises(ReleasedError, match="never given weights"):
        torch.export.export(Wrapper(module), (), quantized.call(), strict=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_stand_in_answers_in_the_pipelines_precision_when_it_is_half(
    kit: Kit, dtype: torch.dtype
) -> None:
    packed(kit, quantized.stock(seed=5, dtype=dtype), dtype=dtype)
    made = stand_in(kit)
    answer = expected(kit, quantized.stock(seed=5, dtype=dtype), dtype=dtype)

    assert made.dtype is dtype
    assert torch.equal(made(**quantized.call(dtype=dtype))[0], answer)


def test_method_is_the_modules_own_when_packed_constants_are_restored(kit: Kit) -> None:
    packed(kit)
    module = hollow()
    loaded = kit.load(net=module)
    swapped = module.forward
    loaded.restore()

    assert "forward" not in vars(module)
    with pytest.raises(ReleasedError, match="never given weights"):
        swapped(**quantized.call())
    made = stand_in(kit)
    made.loaded.restore()
    with pytest.raises(ReleasedError, match="load_component again"):
        made(**quantized.call())


def test_packed_constants_are_bound_no_more_when_the_module_is_given_weights(kit: Kit) -> None:
    packed(kit)
    module = hollow()
    kit.load(net=module)
    module(**quantized.call())
    module.load_state_dict(quantized.stock(seed=6).state_dict(), assign=True)

    with pytest.raises(SignatureMismatch, match="has a value now"):
        module(**quantized.call())


def test_component_with_weights_keeps_them_when_others_are_packed(kit: Kit) -> None:
    packed(kit)
    module = quantized.stock(seed=7)
    answer = quantized.torchaos(module)(**quantized.call())[0]
    loaded = kit.load(net=module)

    assert (module(**quantized.call())[0] - answer).norm() < 5e-3 * answer.norm()
    assert loaded.metrics()["net"]["packed_bytes"] == 0


def test_loading_reads_no_weights_and_imports_no_builder_when_constants_are_packed(
    kit: Kit,
) -> None:
    packed(kit)
    code = (
        "import sys, aotbuild\n"
        "made = aotbuild.load_component(sys.argv[1], store=sys.argv[2])\n"
        "import torch\n"
        "made(torch.zeros(2, 4, 16, 16), 3, return_dict=False)\n"
        "print([m for m in ('diffusers', 'torchao', 'click', 'safetensors') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(kit.store.root), str(kit.libraries)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


# The file


def test_constants_lie_in_the_mapped_file_when_they_are_bound_on_the_cpu(kit: Kit) -> None:
    manifest = packed(kit)
    folder = kit.store.root / manifest.folder
    made = map_constants(folder, manifest, torch.device("cpu"))
    start = min(t.data_ptr() for t in made.values())

    assert {c.name for c in manifest.constants} - set(made) == set()
    assert all(t.data_ptr() % 64 == 0 for t in made.values())
    assert all(t.data_ptr() - start < manifest.packed.file.bytes for t in made.values())
    for constant in manifest.constants:
        assert tuple(made[constant.name].shape) == constant.shape
        assert str(made[constant.name].dtype) == f"torch.{constant.dtype}"
    file = (folder / "constants.safetensors").read_bytes()
    made["embed.bias"].fill_(7)
    assert (folder / "constants.safetensors").read_bytes() == file


def test_constants_have_the_plans_strides_when_they_are_permuted(kit: Kit) -> None:
    module = quantized.stock(seed=5)
    plan = quantized.plan(module)
    last = {c.name: c for c in plan}["conv_in.weight"]
    channels_last = replace(last, stride=(36, 1, 12, 4))
    plan = tuple(channels_last if c is last else c for c in plan)
    manifest = packed(kit, module, plan=plan)
    made = map_constants(kit.store.root / manifest.folder, manifest, torch.device("cpu"))

    assert made["conv_in.weight"].stride() == (36, 1, 12, 4)
    assert torch.equal(made["conv_in.weight"], module.conv_in.weight)


def test_artifacts_share_constants_when_their_files_are_equal(kit: Kit) -> None:
    packed(kit)
    packed(kit, change=lambda fields: fields.update(checks={"again": True}), verified=False)
    made = stand_in(kit, self_check=False)
    artifacts = made.loaded._units[0].dispatcher.artifacts

    assert len(artifacts) == 2
    pointers = [
        {n: t.data_ptr() for n, t in a.binding._aliases.items() if n != "stored"} for a in artifacts
    ]
    assert pointers[0] == pointers[1]
    assert made.loaded.metrics()["net"]["packed_bytes"] == artifacts[0].packed_bytes


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def link(path: Path) -> None:
    path.rename(path.parents[5] / "moved")
    path.symlink_to(path.parents[5] / "moved")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip, "was altered"),
        (lambda path: path.write_bytes(path.read_bytes()[:-64]), "bytes, and the manifest says"),
        (lambda path: path.write_bytes(path.read_bytes() + bytes(64)), "bytes, and the manifest"),
        (link, "symbolic link"),
        (lambda path: path.unlink(), "lacks constants.safetensors"),
    ],
)
def test_packed_constants_are_refused_when_the_file_is_not_the_recorded_one(
    kit: Kit, damage: Callable[[Path], Any], message: str
) -> None:
    damage(kit.store.root / packed(kit).folder / "constants.safetensors")

    module = hollow()
    with pytest.raises(NoArtifactError, match=message):
        kit.load(net=module, fallback="error")
    assert "forward" not in vars(module)
    with pytest.raises((NoArtifactError, SourceError), match=message):
        stand_in(kit, component="net")


def edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    """A file whose header was changed, its own digest recorded: as somebody evil would."""

    def spoil(data: bytes) -> bytes:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        change(header)
        text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        return data[:8] + text.ljust(length) + data[8 + length :]

    return spoil


def offsets(begin: int, end: int) -> Callable[[dict[str, Any]], Any]:
    return lambda header: header["embed.bias"].update(data_offsets=[begin, end])


@pytest.mark.parametrize(
    "spoil",
    [
        edited(offsets(1 << 40, (1 << 40) + 64)),
        edited(offsets(0, 64)),
        edited(offsets(4, 68)),
        edited(offsets(-64, 0)),
        edited(lambda header: header["embed.bias"].update(dtype="F64")),
        edited(lambda header: header["embed.bias"].update(shape=[1 << 30])),
        edited(lambda header: header.pop("embed.bias")),
        edited(lambda header: header.clear()),
        lambda data: b"\xff" * 8 + data[8:],
        lambda data: data + bytes(64),
        lambda data: data[:64],
        lambda data: b"",
    ],
)
def test_packed_constants_are_refused_when_the_file_is_not_laid_out_as_the_plan_says(
    kit: Kit, spoil: Callable[[bytes], bytes]
) -> None:
    packed(kit, spoil=spoil)

    with pytest.raises(NoArtifactError, match=r"isn't laid out|its constants take"):
        stand_in(kit)


@pytest.mark.parametrize("hole", [{"stride": (0, 1)}, {"dtype": "complex64"}])
def test_packed_constants_are_refused_when_their_plan_cannot_be_packed(
    kit: Kit, hole: dict[str, Any]
) -> None:
    plan = quantized.plan(quantized.stock())
    holes = tuple(replace(c, **hole) if c.name == "embed.weight" else c for c in plan)
    packed(kit, plan=plan, change=lambda fields: fields.update(constants=holes))

    with pytest.raises(NoArtifactError, match="can't be packed"):
        stand_in(kit)


# Which artifacts


def test_component_without_weights_is_refused_when_nothing_is_packed(kit: Kit) -> None:
    quantized.write(kit)

    with pytest.raises(NoArtifactError, match="--pack-weights"):
        kit.load(net=hollow())
    with pytest.raises(NoArtifactError, match="--pack-weights"):
        stand_in(kit, component="net")
    with pytest.raises(UsageError, match="--pack-weights"):
        stand_in(kit)


def test_stand_in_is_refused_when_the_component_is_another(kit: Kit) -> None:
    packed(kit)

    with pytest.raises(NoArtifactError, match="No packed artifact serves unet"):
        stand_in(kit, component="unet")


def test_component_must_be_named_when_several_are_packed(kit: Kit) -> None:
    packed(kit)
    packed(kit, component="other")

    with pytest.raises(UsageError, match="net, other; say which"):
        stand_in(kit)
    assert stand_in(kit, component="other")(**quantized.call())


def test_packed_artifact_is_refused_when_it_was_never_verified(kit: Kit) -> None:
    packed(kit, verified=False)

    with pytest.raises(NoArtifactError, match="no eager module to compare"):
        stand_in(kit)
    with pytest.raises(NoArtifactError, match="no eager module to compare"):
        kit.load(net=hollow())
    assert stand_in(kit, self_check=False)(**quantized.call())
    with pytest.raises(NoArtifactError, match="aotbuild verify"):
        stand_in(kit, self_check=False, require_verified=True)


def test_stand_in_is_refused_when_the_artifact_is_for_another_machine(kit: Kit) -> None:
    target = replace(making.machine(), system="windows")
    packed(kit, change=lambda fields: fields.update(target=target))

    with pytest.raises(NoArtifactError, match="windows"):
        stand_in(kit)


# Whose weights


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder whose weights nobody reads: it is its digest that counts."""
    folder = tmp_path / "checkpoint" / "net"
    folder.mkdir(parents=True)
    (folder / "diffusion_pytorch_model.safetensors").write_bytes(b"weights")
    return folder.parent


def test_checkpoint_is_accepted_when_it_is_the_packed_one(kit: Kit, checkpoint: Path) -> None:
    digest = find_weights(checkpoint, "net").digest()
    packed(kit, origin={**HUB, "digest": digest})

    for asked in (checkpoint, str(checkpoint), f"org/model@{COMMIT}", None):
        assert stand_in(kit, checkpoint=asked)(**quantized.call())
        kit.load(net=(module := hollow()), checkpoint=asked)
        assert module(**quantized.call())


def test_checkpoint_is_refused_before_any_work_when_it_is_none(
    kit: Kit, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed(kit)
    monkeypatch.chdir(checkpoint.parent)
    file = checkpoint / "net" / "diffusion_pytorch_model.safetensors"
    odd: list[tuple[Any, str]] = [
        ("", "ORGANISATION/NAME@COMMIT"),
        (checkpoint.name, "'./FOLDER' for a local one"),
        ("a/b@", "all 40 digits"),
        ("a/b", "all 40 digits"),
        ("a/b/c", "all 40 digits"),
        (f"a/b/c@{COMMIT}", "ORGANISATION/NAME@COMMIT"),
        (f"a@{COMMIT}", "ORGANISATION/NAME@COMMIT"),
        (5, "ORGANISATION/NAME@COMMIT"),
        (b"./x", "ORGANISATION/NAME@COMMIT"),
        (file, "is a file"),
        (str(file), "is a file"),
        (Path("nowhere"), "isn't there"),
        ("./nowhere", "isn't there"),
        ("~nobody-of-this-name/x", "home directory"),
        ("./a\0b", "is no path"),
    ]
    for value, words in odd:
        with pytest.raises(UsageError, match=words) as caught:
            stand_in(kit, checkpoint=value)
        assert "\n" not in str(caught.value)
        with pytest.raises(UsageError, match=words):
            kit.load(net=quantized.stock(), checkpoint=value)  # although it has its own weights


@pytest.mark.parametrize("argument", ["source", "store"])
@pytest.mark.parametrize("value", [5, b"x", "", "./a\0b", "~nobody-of-this-name/x", ["x"]])
def test_path_is_refused_when_it_is_none(kit: Kit, argument: str, value: Any) -> None:
    packed(kit)
    options = {"source": kit.store.root, "store": kit.libraries, argument: value}
    for call in (partial(aotbuild.load, SimpleNamespace()), aotbuild.load_component):
        with pytest.raises(UsageError, match=rf"{argument}="):
            call(options["source"], store=options["store"])


def test_checkpoint_is_refused_when_it_is_another(kit: Kit, checkpoint: Path) -> None:
    packed(kit, origin=HUB)

    for asked, named in (
        (checkpoint, str(checkpoint)),
        (f"org/model@{'d' * 40}", f"org/model@{'d' * 40}"),
        (f"org/other@{COMMIT}", "org/other"),
    ):
        with pytest.raises(NoArtifactError, match=f"of org/model@{COMMIT}, not of {named}"):
            stand_in(kit, checkpoint=asked)
        with pytest.raises(NoArtifactError, match=f"not of {named}"):
            kit.load(net=hollow(), checkpoint=asked)


def test_repository_is_refused_when_the_constants_are_of_a_folder(kit: Kit) -> None:
    packed(kit)

    with pytest.raises(NoArtifactError, match="a folder with digest 111111111111, not of org"):
        stand_in(kit, checkpoint=f"org/model@{COMMIT}")


@pytest.mark.parametrize("asked", ["org/model", "org/model@main", f"org/model@{COMMIT[:12]}"])
def test_checkpoint_is_refused_when_it_names_no_commit(kit: Kit, asked: str) -> None:
    packed(kit, origin=HUB)

    with pytest.raises(UsageError, match="all 40 digits"):
        stand_in(kit, checkpoint=asked)


def test_checkpoint_must_be_named_when_constants_of_several_are_packed(kit: Kit) -> None:
    packed(kit, origin=HUB)
    packed(
        kit, quantized.stock(seed=6), origin={**HUB, "checkpoint": "org/tuned", "digest": "3" * 64}
    )

    with pytest.raises(LoadError, match=r"2 checkpoints, org/model@.*, org/tuned@"):
        stand_in(kit)
    with pytest.raises(LoadError, match="2 checkpoints"):
        kit.load(net=hollow())
    answer = expected(kit, quantized.stock(seed=6))
    made = stand_in(kit, checkpoint=f"org/tuned@{COMMIT}")
    assert torch.equal(made(**quantized.call())[0], answer)


# A method that isn't forward


def test_stand_in_has_the_method_of_the_unit_when_it_is_not_forward(kit: Kit) -> None:
    module = nets.vae()
    call = {"z": torch.randn(1, 4, 8, 8), "return_dict": False}
    package = kit.compiled / "vae.pt2"
    making.compile_call(module, "decode", call, package)
    signature = making.signature_of(module, "decode", call, {})
    plan = tuple(
        making.constant(n, p)
        for n, p in module.named_parameters()
        if n.startswith(("decoder.", "post_quant_conv."))
    )
    making.write_artifact(
        kit.store, module, package, signature, plan, component="vae.decode", method="decode",
        pack=module,
    )  # fmt: skip
    made = stand_in(kit, component="vae")
    answer = made.decode(call["z"], return_dict=False, generator=torch.Generator())[0]

    assert torch.allclose(answer, module.decode(**call)[0], atol=1e-4)
    assert stand_in(kit, component="vae.decode").config.latent_channels == 4
    with pytest.raises(TypeError, match="by its methods, such as decode"):
        made(call["z"])


def test_load_gives_the_device_of_the_pipeline_when_a_component_has_none(kit: Kit) -> None:
    packed(kit)
    pipeline = SimpleNamespace(net=hollow(), other=nets.net(), note="x")
    loaded = aotbuild.load(pipeline, Store(kit.store.root).root, store=kit.libraries)
    kit.loaded.append(loaded)

    assert loaded.metrics()["net"]["packed_bytes"]
