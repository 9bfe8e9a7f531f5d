"""A tiny model of stories with random weights, in the format of the real one."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from cdcd.languages.story_model import StoryModel
from cdcd.languages.story_tokenizer import BEGIN, FIRST_PIECE, StoryTokenizer

WIDTH, HIDDEN, BLOCKS, HEADS = 16, 24, 2, 2
PIECES = [b" ", b"a", b"b", b"c", b" a", b"ab", b"ca", b" ab", b"abc", b" ca", b"aba", b"  ", b"."]
SCORES = [-1e9, -1e9, -1e9, -1e9, -3.0, -1.0, -2.0, -4.0, -6.0, -5.0, -7.0, -1e9, -1e9]


def weights(vocab_size: int, seed: int = 0, spread: float = 1.0) -> dict[str, torch.Tensor]:
    """Random weights; `spread` is the deviation of embeddings: high for a language far from uniform."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int, std: float) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * std

    square = {name: drawn(BLOCKS, WIDTH, WIDTH, std=0.4) for name in ("q", "k", "v", "o")}
    wide = {name: drawn(BLOCKS, HIDDEN, WIDTH, std=0.4) for name in ("w1", "w3")}
    norms = {name: 1 + drawn(BLOCKS, WIDTH, std=0.2) for name in ("an", "fn")}
    return (
        {"emb": drawn(vocab_size, WIDTH, std=spread), "n": 1 + drawn(WIDTH, std=0.2)}
        | square
        | wide
        | norms
        | {"w2": drawn(BLOCKS, WIDTH, HIDDEN, std=0.4)}
    )


def tiny_model(vocab_size: int, seed: int = 0, spread: float = 1.0) -> StoryModel:
    return StoryModel(weights(vocab_size, seed, spread), HEADS, dtype=torch.float64)


def tiny_tokenizer(pieces: Sequence[bytes] = PIECES) -> StoryTokenizer:
    controls = [b"<unk>", b"\n<s>\n", b"\n</s>\n"]
    whole = [*controls, *(bytes([byte]) for byte in range(256)), *pieces]
    assert len(whole) - len(pieces) == FIRST_PIECE
    return StoryTokenizer(whole, [0.0] * FIRST_PIECE + SCORES[: len(pieces)])


def write_tiny_stories(
    folder: Path, seed: int = 0, spread: float = 0.3, pieces: Sequence[bytes] = PIECES
) -> Path:
    """Writes the files of a tiny model of stories."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_tokenizer(pieces)
    content = struct.pack("<i", max(map(len, tokenizer.pieces)))
    for piece, score in zip(tokenizer.pieces, tokenizer.scores, strict=True):
        content += struct.pack("<fi", score, len(piece)) + piece
    (folder / "tokenizer.bin").write_bytes(content)
    drawn = weights(tokenizer.vocab_size, seed, spread)
    # Bytes are rare, as they are in text: of what is written and read, the first component differs.
    is_rare = torch.arange(tokenizer.vocab_size) < FIRST_PIECE
    is_rare[BEGIN] = False
    drawn["emb"][:, 0] = torch.where(is_rare, -4.0, 4.0)
    drawn["o"][:, 0] = drawn["w2"][:, 0] = 0
    tensors = {name: tensor.half().contiguous() for name, tensor in drawn.items()}
    save_file(tensors, folder / "weights.safetensors", metadata={"H": json.dumps(HEADS)})
    return folder
