"""The flags of mergekit-yaml: mapped to ours, or accepted and explained."""

from collections.abc import Callable
from functools import wraps

import click

_NOTHING = {
    "--lazy-unpickle": "pickles are never opened, tensors are always read lazily",
    "--low-cpu-memory": "memory holds the tensors in flight only, always",
    "--read-to-gpu": "tensors go to the device as they are needed",
    "--multi-gpu": "every CUDA device is used unless --device names some",
    "--gpu-rich": "every CUDA device is used unless --device names some",
    "--copy-tokenizer": "the tokenizer is always copied, byte for byte",
    "--no-copy-tokenizer": "the tokenizer is always copied",
    "--allow-crimes": "nothing depends on lists of architectures; shapes must fit all the same",
    "--safe-serialization": "the output is always safetensors",
    "--clone-tensors": "tensors never share memory in the output",
    "--write-model-card": "a model card is always written",
    "--trust-remote-code": "no code of a model is ever run",
    "--async-write": "reading, computing and writing always overlap",
}


def peer_flags(command: Callable) -> Callable:
    """Accepts the common flags of mergekit-yaml; a line on stderr tells what each means here."""

    @wraps(command)
    def told(**options: object) -> object:
        for flag, why in _NOTHING.items():
            if options.pop(_key(flag)):
                click.echo(f"note: {flag} changes nothing here: {why}", err=True)
        if options.pop("cuda"):
            options["device"] = "cuda"
        size = options.pop("out_shard_size")
        options["shard_size"] = options["shard_size"] or size
        return command(**options)

    for flag in _NOTHING:
        told = click.option(flag, _key(flag), is_flag=True, hidden=True)(told)
    told = click.option("--cuda", is_flag=True, hidden=True)(told)
    return click.option("--out-shard-size", hidden=True)(told)


def _key(flag: str) -> str:
    return "peer_" + flag.removeprefix("--").replace("-", "_")
