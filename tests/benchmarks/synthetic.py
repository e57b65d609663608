"""Pairs of checkpoints with the shapes of real models and random weights, written as a stream.

The weights mean nothing; sizes, names, dtypes and the look of an RL delta (small, partly of low
rank, mostly rounded away in bf16) are those of a real pair.
"""

import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

DELTA_SIZE = 1e-3  # ‖Δ‖/‖W0‖ before the cast to bf16
DELTA_RANK = 16  # of the low-rank half of the delta's energy
WEIGHT_STD = 0.02
BLOCK = 1 << 22  # entries in memory at a time, per tensor


@dataclass(frozen=True)
class Shapes:
    """The sizes that decide every tensor of a Llama model with an untied head."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes, in the order of the model."""
        kv = self.kv_heads * self.head_dim
        tensors: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab, self.hidden)
        }
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            tensors |= {
                f"{prefix}.input_layernorm.weight": (self.hidden,),
                f"{prefix}.mlp.down_proj.weight": (self.hidden, self.intermediate),
                f"{prefix}.mlp.gate_proj.weight": (self.intermediate, self.hidden),
                f"{prefix}.mlp.up_proj.weight": (self.intermediate, self.hidden),
                f"{prefix}.post_attention_layernorm.weight": (self.hidden,),
                f"{prefix}.self_attn.k_proj.weight": (kv, self.hidden),
                f"{prefix}.self_attn.o_proj.weight": (self.hidden, self.hidden),
                f"{prefix}.self_attn.q_proj.weight": (self.hidden, self.hidden),
                f"{prefix}.self_attn.v_proj.weight": (kv, self.hidden),
            }
        tensors["model.norm.weight"] = (self.hidden,)
        tensors["lm_head.weight"] = (self.vocab, self.hidden)
        return tensors

    def config(self) -> dict[str, object]:
        """The contents of config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "bos_token_id": 1,
            "dtype": "bfloat16",
            "eos_token_id": 2,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "initializer_range": WEIGHT_STD,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": 2048,
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
            "tie_word_embeddings": False,
            "vocab_size": self.vocab,
        }


SHAPES = {
    "tinyllama": Shapes(
        hidden=2048, layers=22, heads=32, kv_heads=4, intermediate=5632, vocab=32000
    ),
    "small": Shapes(hidden=64, layers=2, heads=4, kv_heads=2, intermediate=176, vocab=256),
}


def blocks(
    shape: tuple[int, ...], generator: torch.Generator, experts: int
) -> Iterator[list[Tensor]]:
    """Yield [base, rl, …] for successive rows of one tensor, in bf16.

    A matrix is Gaussian and its RL version adds (low rank + noise)/√2; a vector (a norm's weight)
    lies around 1 and gets noise alone.

    Args:
        shape: (m, n) or (n,).
        generator: the tensor's own.
        experts: RL versions, at least 1.
    """

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    if len(shape) == 1:
        base = (1 + WEIGHT_STD * normal(*shape)).bfloat16()
        yield [
            base,
            *((base.float() + DELTA_SIZE * normal(*shape)).bfloat16() for _ in range(experts)),
        ]
        return
    m, n = shape
    rights = [normal(DELTA_RANK, n) / math.sqrt(DELTA_RANK) for _ in range(experts)]
    rows = max(1, BLOCK // n)
    for start in range(0, m, rows):
        count = min(rows, m - start)
        base = normal(count, n).mul_(WEIGHT_STD).bfloat16()
        versions = [base]
        for right in rights:  # entries of variance 2
            delta = normal(count, n).addmm_(normal(count, DELTA_RANK), right)
            delta.mul_(DELTA_SIZE * WEIGHT_STD / math.sqrt(2))
            versions.append(delta.add_(base).bfloat16())
        yield versions


def header(tensors: dict[str, tuple[int, ...]]) -> bytes:
    """The head of a safetensors file: length, JSON padded with spaces to a multiple of 8."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in tensors.items():
        end = offset + 2 * math.prod(shape)
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def shard(tensors: dict[str, tuple[int, ...]], count: int) -> list[dict[str, tuple[int, ...]]]:
    """Cut the tensors, in order, into `count` shards of about equal size."""
    total = sum(map(math.prod, tensors.values()))
    shards: list[dict[str, tuple[int, ...]]] = [{} for _ in range(count)]
    before = 0
    for name, shape in tensors.items():
        shards[before * count // total][name] = shape
        before += math.prod(shape)
    return shards


def write_block(file: BinaryIO, block: Tensor) -> None:
    """Append the bytes of a bf16 tensor."""
    file.write(block.contiguous().view(torch.int16).numpy().data)


def make_pair(
    folder: Path, *, shapes: str = "tinyllama", seed: int = 0, shards: int = 2
) -> tuple[Path, Path]:
    """Write `folder`/base and `folder`/rl and return both paths; see `make_family`."""
    base, rl = make_family(folder, ["rl"], shapes=shapes, seed=seed, shards=shards)
    return base, rl


def make_family(
    folder: Path, experts: list[str], *, shapes: str = "tinyllama", seed: int = 0, shards: int = 2
) -> list[Path]:
    """Write `folder`/base and a checkpoint trained from it per name, and return their paths.

    Args:
        folder: where the checkpoints go; created if missing.
        experts: names of the RL versions.
        shapes: a key of `SHAPES`: "tinyllama" (1.1 B parameters, 2.2 GB each) or "small".
        seed: decides every random number.
        shards: safetensors files per checkpoint, at least 1.
    """
    sizes = SHAPES[shapes]
    tensors = sizes.tensors()
    seeds = {name: seed * 1_000_003 + index for index, name in enumerate(tensors)}
    folders = [folder / "base", *(folder / name for name in experts)]
    for target in folders:
        target.mkdir(parents=True, exist_ok=True)
        (target / "config.json").write_text(json.dumps(sizes.config(), indent=2) + "\n")

    parts = shard(tensors, shards)
    files = [f"model-{index:05d}-of-{shards:05d}.safetensors" for index in range(1, shards + 1)]

    def write_shard(file_name: str, part: dict[str, tuple[int, ...]]) -> None:
        with ExitStack() as stack:
            opened = [stack.enter_context((one / file_name).open("wb")) for one in folders]
            for file in opened:
                file.write(header(part))
            for name, shape in part.items():
                generator = torch.Generator().manual_seed(seeds[name])
                for versions in blocks(shape, generator, len(experts)):
                    for file, block in zip(opened, versions, strict=True):
                        write_block(file, block)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write_shard, files, parts))

    index = {
        "metadata": {"total_size": 2 * sum(map(math.prod, tensors.values()))},
        "weight_map": {
            name: file for file, part in zip(files, parts, strict=True) for name in part
        },
    }
    for target in folders:
        text = json.dumps(index, indent=2) + "\n"
        (target / "model.safetensors.index.json").write_text(text)
    return folders
