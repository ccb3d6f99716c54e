"""A real CLIP tokenizer made on the spot: a token per byte; text encoders are `pipeline`'s."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

START, END = "<|startoftext|>", "<|endoftext|>"


def byte_symbols() -> list[str]:
    """The 256 printable characters by which byte-level BPE writes bytes, in byte order.

    Source: GPT-2's encoder: printable Latin-1 bytes stand for themselves, the others for the code
    points from 256 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(spare)) for b in range(256)]


def vocabulary() -> dict[str, int]:
    """514 tokens: each byte inside a word, each byte that ends one, start and end of text."""
    symbols = byte_symbols()
    tokens = [*symbols, *(f"{s}</w>" for s in symbols), START, END]
    return {token: number for number, token in enumerate(tokens)}


def make_tokenizer(max_length: int = 77) -> Any:
    """A `transformers.CLIPTokenizer` over `vocabulary`, without merges.

    Goes by way of a temporary folder, because transformers 4 and 5 share no other way in.
    """
    from transformers import CLIPTokenizer

    settings = {
        "tokenizer_class": "CLIPTokenizer",
        "model_max_length": max_length,
        "bos_token": START,
        "eos_token": END,
        "pad_token": END,
        "unk_token": END,
    }
    with tempfile.TemporaryDirectory(prefix="aotbuild-tokenizer-") as name:
        folder = Path(name)
        folder.joinpath("vocab.json").write_text(json.dumps(vocabulary()), encoding="utf-8")
        folder.joinpath("merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
        folder.joinpath("tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
        return CLIPTokenizer.from_pretrained(str(folder))
