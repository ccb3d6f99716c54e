"""Methods that answer in one of diffusers' output objects; manifests that name other classes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from diffusers.models.autoencoders.vae import DecoderOutput

from aotbuild.errors import NoArtifactError
from aotbuild.loaders.outputs import Output, output_class

from . import making, nets
from .conftest import Kit, model_plan

NAME = f"{DecoderOutput.__module__}.DecoderOutput"


def write_vae(kit: Kit, *returned: str) -> None:
    """An artifact of the decoder as CogVideoX's pipeline calls it: `vae.decode(z).sample`."""
    module, call = nets.vae(), {"z": torch.zeros(1, 4, 8, 8)}
    package = kit.compiled / "vae-output.pt2"
    making.compile_call(module, "decode", call, package)
    signature = making.signature_of(module, "decode", call, {})
    returns: Any = (("", {"object": list(returned)}),)
    making.write_artifact(
        kit.store,
        module,
        package,
        replace(signature, returns=returns),
        model_plan(module, ("decoder.", "post_quant_conv.")),
        component="vae.decode",
        method="decode",
    )


def test_answer_is_the_output_object_that_eager_gives(kit: Kit) -> None:
    write_vae(kit, NAME, "sample")
    module, z = nets.vae(), torch.randn(1, 4, 8, 8)
    expected = module.decode(z)
    loaded = kit.load(vae=module)
    for _ in range(2):  # the first call is held against eager
        found = module.decode(z)
        assert type(found) is DecoderOutput
        assert list(found) == ["sample"]
        torch.testing.assert_close(found.sample, expected.sample)
        assert found[0] is found.sample
    assert loaded.metrics()["vae.decode"]["fallbacks"] == {}


@pytest.mark.parametrize("name", ["subprocess.Popen", "no.such.Thing", "builtins.dict"])
def test_artifact_is_refused_when_it_names_what_is_no_output_class(name: str, kit: Kit) -> None:
    write_vae(kit, name, "sample")
    with pytest.raises(NoArtifactError, match=f"answers with {name}, which is no output class"):
        kit.load(vae=nets.vae(), fallback="error")


def test_output_class_is_taken_from_loaded_modules_alone() -> None:
    assert output_class(NAME) is DecoderOutput
    assert output_class("diffusers.models.autoencoders.vae.Encoder") is None
    assert output_class("antigravity.Output") is None


def test_output_reads_as_a_librarys_own_where_no_library_is_loaded() -> None:
    made: Any = Output(sample=torch.ones(1))
    assert made.sample is made["sample"] is made[0]
    with pytest.raises(AttributeError, match="no 'latents'"):
        _ = made.latents
