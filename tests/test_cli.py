"""The command line without an artifact in sight: help, exit codes, errors of one paragraph."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from aotbuild.cli import COMMANDS, main

CHEAP_IMPORTS = """
import sys
from aotbuild.cli import main
code = main(["--help"])
heavy = {"torch", "diffusers", "huggingface_hub", "rich", "numpy"} & set(sys.modules)
commands = sorted(m for m in sys.modules if m.startswith("aotbuild.commands"))
sys.exit(f"imported {heavy or commands}" if heavy or commands else code)
"""


def run(*arguments: str) -> int:
    return main([*arguments])


def test_help_imports_neither_torch_nor_a_command_when_it_is_shown() -> None:
    done = subprocess.run([sys.executable, "-c", CHEAP_IMPORTS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)


def test_module_is_the_same_program_when_run_by_python() -> None:
    command = [sys.executable, "-m", "aotbuild", "recipes", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names = [r["name"] for r in json.loads(done.stdout)["recipes"]]
    assert {"sd15", "sdxl", "tiny"} <= set(names)


@pytest.mark.parametrize("name", COMMANDS)
def test_command_explains_itself_when_asked(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name, "--help") == 0
    assert f"aotbuild {name}" in capsys.readouterr().out


WRONG_CALLS = {
    "no such command": (("blah",), "No such command 'blah'"),
    "a misspelt command": (("verfy",), "No such command 'verfy': did you mean verify?"),
    "a misspelt command of a group": (
        ("bench", "cold-strat"),
        "No such command 'cold-strat': did you mean cold-start?",
    ),
    "no such command of a group": (("recipes", "lst"), "No such command 'lst'. There are new."),
    "no recipe": (("build", "--gpu", "cpu"), "Missing argument"),
    "no gpu": (("build", "tiny"), "--gpu"),
    "unknown recipe": (("build", "sdx", "--gpu", "cpu"), "Did you mean sdxl?"),
    "no recipe file": (("plan", "./none.toml", "--gpu", "cpu"), "No recipe file"),
    "unknown gpu": (("build", "sdxl", "--gpu", "a1000"), "Did you mean a100?"),
    "cuda as a gpu": (("build", "sdxl", "--gpu", "cuda"), "Type --gpu auto"),
    "a recipe in capitals": (("build", "SDXL", "--gpu", "cpu"), "Did you mean sdxl?"),
    "a component that is none": (
        ("build", "sdxl", "--gpu", "cpu", "--component", "unett"),
        "--component unett: recipe sdxl has unet, vae.",
    ),
    "off the grid": (
        ("build", "sdxl", "--gpu", "a100", "--resolution", "1000x1000"),
        "nearest is 992x992",
    ),
    "no resolution": (("build", "sd15", "--gpu", "cpu", "--resolution", "big"), "WIDTHxHEIGHT"),
    "half a range": (("plan", "sd15", "--gpu", "cpu", "--dynamic", "512x512"), "WxH:WxH"),
    "no batch": (("plan", "sd15", "--gpu", "cpu", "--batch", "0"), "--batch 0: write whole"),
    "no batch among several": (
        ("plan", "sd15", "--gpu", "cpu", "--batch", "1,four"),
        "--batch four: write whole",
    ),
    "a comma too many": (("plan", "sd15", "--gpu", "cpu", "--batch", "1,,4"), "--batch 1,,4:"),
    "a resolution off the grid among several": (
        ("plan", "sd15", "--gpu", "cpu", "--resolution", "512x512,520x520"),
        "nearest is 512x512",
    ),
    "sizes beside a range": (
        ("plan", "sd15", "--gpu", "cpu", "--resolution", "512x512", "--dynamic", "512x512:768x768"),
        "leave --resolution out",
    ),
    "unknown dtype": (("plan", "sd15", "--gpu", "cpu", "--dtype", "fp8"), "fp8"),
    "regional": (
        ("build", "tiny", "--gpu", "cpu", "--scope", "regional", "--pack-weights"),
        "Leave one of the two out",
    ),
    "a range that is empty": (
        ("plan", "tiny", "--gpu", "cpu", "--dynamic", "256x256:64x64"),
        "smallest:largest",
    ),
    "a checkpoint that isn't": (
        ("plan", "tiny", "--gpu", "cpu", "--checkpoint", "."),
        "model_index.json",
    ),
    "no folder of a checkpoint": (
        ("plan", "tiny", "--gpu", "cpu", "--checkpoint", "./none"),
        "There is no folder ./none",
    ),
    "no folder to pack": (
        ("build", "tiny", "--gpu", "cpu", "--checkpoint", "./none", "--pack-weights"),
        "There is no folder ./none",
    ),
    "tuning a CPU": (("plan", "tiny", "--gpu", "cpu", "--tune"), "--tune measures on a GPU"),
    "neither folder nor repository": (("recipes", "new", "./none"), "neither a folder"),
    "nothing to prune": (("prune",), "--dry-run"),
    "no size": (("prune", "--max-size", "much"), "500MB"),
    "no folder": (("doctor", "./none"), "There is no folder or lockfile none"),
    "no store to list": (("list", "--store", "./none"), "There is no store at"),
    "no store to judge": (("doctor", "--store", "./none"), "There is no store at"),
    "no store to prune": (("prune", "--broken", "--store", "./none"), "There is no store at"),
    "a key to show that isn't": (("show", "abc", "--store", "."), "aotbuild list"),
    "a key to verify that isn't": (("verify", "abc", "--store", "."), "aotbuild list"),
    "keys to explain that aren't": (("explain", "a", "b", "--store", "."), "aotbuild list"),
    "a key to prune that isn't": (("prune", "abc", "--store", "."), "aotbuild list"),
}


@pytest.mark.parametrize("case", WRONG_CALLS)
def test_wrong_call_exits_2_with_one_paragraph_when(
    case: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, expected = WRONG_CALLS[case]
    assert run(*arguments) == 2
    said = capsys.readouterr()
    assert expected in said.err
    assert said.out == ""
    assert "\n\n" not in said.err.strip().partition("Error: ")[2]
    assert "Traceback" not in said.err


def test_build_exits_1_when_the_store_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    assert run("build", "tiny", "--gpu", "cpu", "--store", str(file / "store")) == 1
    said = capsys.readouterr()
    assert str(file) in said.err
    assert "Traceback" not in said.err
    assert "compile" not in said.err  # found out before the work, not after


@pytest.mark.parametrize(
    "command", [("build", "tiny", "--gpu", "cpu"), ("demo",), ("bench", "cold-start", "tiny")]
)
@pytest.mark.parametrize("inside", ["", "below"])
def test_out_is_refused_before_the_work_when_it_is_a_file(
    command: tuple[str, ...], inside: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    store = ("--store", str(tmp_path / "store"))
    assert run(*command, *store, "--out", str(file / inside)) == 2
    said = capsys.readouterr()
    assert str(file) in said.err
    assert "rehearse" not in said.err
    assert file.read_text() == "precious"


def test_build_exits_1_when_there_is_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert run("build", "tiny", "--gpu", "cpu", "--store", str(tmp_path / "store")) == 1
    said = capsys.readouterr()
    assert "No C++ compiler" in said.err
    assert "apt-get install g++" in said.err


def test_plan_says_what_it_is_doing_on_stderr_while_it_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("plan", "tiny", "--gpu", "cpu", "--store", str(tmp_path), "--json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["artifacts"]
    assert "rehearse" in said.err


def test_list_is_empty_and_says_why_when_the_default_store_was_never_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AOTBUILD_STORE", str(tmp_path / "none"))
    assert run("list", "--json") == 0
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert document == {"store": str(tmp_path / "none"), "artifacts": [], "broken": []}
    assert said.err == f"There is no store at {tmp_path / 'none'} yet.\n"


def test_list_names_what_is_broken_when_something_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "artifacts" / "unet" / "sm_80" / "2x4-float16-abcd-0123456789ab"
    folder.mkdir(parents=True)
    folder.joinpath("manifest.json").write_text("{}")
    folder.joinpath("package.pt2").write_bytes(b"")
    assert run("list", "--store", str(tmp_path)) == 0
    assert "broken" in capsys.readouterr().out
    assert run("list", "--store", str(tmp_path), "--json") == 0
    (broken,) = json.loads(capsys.readouterr().out)["broken"]
    assert broken["path"] == str(folder)
    assert broken["reason"]


def test_doctor_advises_a_build_for_the_cpu_when_there_is_no_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("doctor", "--store", str(tmp_path)) == 0
    said = capsys.readouterr().out
    wanted = "cpu" if said.startswith("target    cpu") else "auto"
    assert f"`aotbuild build RECIPE --gpu {wanted} --store {tmp_path}` makes some" in said


def test_doctor_says_what_this_machine_is_when_there_is_nothing_to_judge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("doctor", "--store", str(tmp_path), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["target"]["system"] == "linux"
    assert document["artifacts"] == []
    assert document["versions"]["torch"]
