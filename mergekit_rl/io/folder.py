"""Which files of a folder are its weights, and which folders are refused."""

import fnmatch
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from mergekit_rl.errors import EditError
from mergekit_rl.io.header import TensorInfo, read_header
from mergekit_rl.io.jsonfile import read_object, shown

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")
_HUB_CACHE = re.compile(r"models--[^/]+")
_TO_SAFETENSORS = (
    "AutoModelForCausalLM.from_pretrained(…).save_pretrained(…) of transformers writes safetensors"
)
# What a folder without safetensors may be, by a file it holds, and the way out.
_CONVERTERS = (
    ("zero_to_fp32.py", "DeepSpeed ZeRO", "python zero_to_fp32.py DIR OUT --safe_serialization"),
    ("global_step*", "DeepSpeed ZeRO", "zero_to_fp32.py DIR OUT --safe_serialization"),
    (".metadata", "torch distributed (DCP/FSDP)", "accelerate merge-weights DIR OUT"),
    ("*.distcp", "torch distributed (DCP/FSDP)", "accelerate merge-weights DIR OUT"),
    ("model_world_size_*.pt", "verl FSDP", "python -m verl.model_merger merge"),
    ("pytorch_model_fsdp*", "FSDP", "accelerate merge-weights DIR OUT"),
    ("latest_checkpointed_iteration.txt", "Megatron", "the exporter of Megatron Bridge"),
    ("*.gguf", "GGUF", "from_pretrained(DIR, gguf_file=…).save_pretrained(…) of transformers"),
    ("*.bin", "pickled", _TO_SAFETENSORS),
    ("*.pt", "pickled", _TO_SAFETENSORS),
    ("*.pth", "pickled", _TO_SAFETENSORS),
)


def read_tensors(folder: Path) -> dict[str, TensorInfo]:
    """Every tensor of a checkpoint folder by name, from its headers.

    Raises:
        EditError: no safetensors weights (naming what the folder holds and its converter), a shard
            that is absent, a name twice or missing, a path or link out of the folder.
    """
    single, index = folder / SINGLE, folder / INDEX  # in the order transformers looks for them
    if single.is_file():
        check_link(folder, single)
        return _merge([single])
    return _indexed(index) if index.exists() else _gathered(folder)


def is_shard(name: str) -> bool:
    """Whether a file's name is that of one of several: `model-00001-of-00002.safetensors`."""
    return _SHARD.fullmatch(name) is not None


def safe_file(folder: Path, name: str, *, where: Path) -> Path:
    """The file `name` of `folder`, which `where` names.

    Raises:
        EditError: `name` is absolute or climbs out with `..`; the file is absent, or a link that
            leads neither into the folder nor into the same Hub cache.
    """
    pure = PurePosixPath(name)
    if not name or pure.is_absolute() or ".." in pure.parts or "\\" in name or "\0" in name:
        raise EditError(f"{where} names the file {shown(name)}, expected a path inside its folder")
    path = folder / name
    try:
        found = path.is_file()
    except OSError as error:  # a name longer than the system takes, a folder that may not be read
        raise EditError(f"{where} names {shown(name)}: {error.strerror}") from None
    if not found:
        raise EditError(
            f"{where} names {shown(name)}, which {folder} does not hold; fetch it again"
        )
    check_link(folder, path)
    return path


def check_link(folder: Path, path: Path) -> None:
    """Raises EditError where `path` is a link out of `folder` and out of its Hub cache."""
    try:
        target, home = path.resolve(), folder.resolve()
    except (OSError, RuntimeError):  # RuntimeError: before Python 3.13
        raise EditError(f"{path} is a link that leads nowhere; fetch the file again") from None
    if target.is_relative_to(home):
        return
    # A cached model: models--org--name/snapshots/<revision>/file -> ../../blobs/<hash>
    if home.parent.name == "snapshots" and _HUB_CACHE.fullmatch(home.parent.parent.name):
        if target.is_relative_to(home.parent.parent / "blobs"):
            return
    raise EditError(f"{path} is a link to {target}, outside its folder: copy the file in its place")


def _indexed(index: Path) -> dict[str, TensorInfo]:
    check_link(index.parent, index)
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise EditError(f"{index} has no weight_map of names to files")
    for name, file in weight_map.items():
        if not isinstance(file, str) or not file.endswith(".safetensors"):
            raise EditError(
                f"{index} puts {shown(name)} in {shown(file)}, expected a .safetensors file"
            )
    files = list(dict.fromkeys(weight_map.values()))
    tensors = _merge([safe_file(index.parent, file, where=index) for file in files])
    for name, file in weight_map.items():
        if name not in tensors or tensors[name].path != index.parent / file:
            raise EditError(f"{index} puts {shown(name)} in {shown(file)}, which does not hold it")
    for name in tensors:
        if name not in weight_map:
            raise EditError(
                f"{tensors[name].path} holds {name!r}, which {index.name} does not list"
            )
    return tensors


def _gathered(folder: Path) -> dict[str, TensorInfo]:
    # Original-format duplicates of the same weights beside the transformers ones.
    files = sorted(
        path for path in folder.glob("*.safetensors") if not path.name.startswith("consolidated")
    )
    if not files:
        raise no_weights(str(folder), [path.name for path in folder.iterdir()])
    for path in files:
        check_link(folder, path)
    if len(files) > 1 or is_shard(files[0].name):
        _check_complete(folder, files)
    return _merge(files)


def _check_complete(folder: Path, files: list[Path]) -> None:
    shards = [_SHARD.fullmatch(path.name) for path in files]
    if not all(shards):
        raise EditError(
            f"{folder} holds {len(files)} safetensors files and no {INDEX}: "
            "it is not clear which of them are the model"
        )
    count = int(shards[0]["count"])
    found = {(shard["stem"], int(shard["number"]), int(shard["count"])) for shard in shards}
    expected = {(shards[0]["stem"], number, count) for number in range(1, count + 1)}
    if found != expected:
        missing = sorted(expected - found)
        what = f"shard {missing[0][1]} of {count} is absent" if missing else "shards of two sets"
        raise EditError(f"{folder}: {what}; fetch the checkpoint again")


def _merge(files: list[Path]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for path in files:
        for name, info in read_header(path)[0].items():
            if name in tensors:
                raise EditError(f"{name!r} is in {tensors[name].path} and again in {path}")
            tensors[name] = info
    if not tensors:
        raise EditError(f"{files[0]} holds no tensor")
    return tensors


def no_weights(where: str, names: Iterable[str]) -> EditError:
    """What to say of a folder or repository that holds the files `names`, and no safetensors."""
    tops = sorted({name.partition("/")[0] for name in names})
    for pattern, kind, converter in _CONVERTERS:
        if fnmatch.filter(tops, pattern):
            return EditError(
                f"{where} holds a {kind} checkpoint and no safetensors file; "
                f"convert it first: {converter}"
            )
    return EditError(f"{where} holds no safetensors file, expected a checkpoint folder")
