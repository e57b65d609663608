"""A model reference to a local folder: a path as it is, a Hub id through the cache."""

import re
from pathlib import Path

from mergekit_rl.errors import EditError
from mergekit_rl.io.sidefiles import is_side_file

_REPO_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_WEIGHTS = ("model.safetensors", "adapter_model.safetensors", "core.json", "adapter_config.json")


def locate(ref: str | Path, revision: str | None = None) -> tuple[Path, str | None]:
    """The folder of `ref` and, for a Hub id, the commit it was resolved to.

    An existing path wins; `org/name@revision` names a revision. Only the files an edit needs are
    fetched; without a network the cache serves.

    Raises:
        EditError: neither a folder nor a Hub id that can be fetched or is cached.
    """
    path = Path(ref)
    if path.is_dir():
        if revision:
            raise EditError(f"{ref} is a folder, and a folder has no revision {revision!r}")
        return path, None
    if path.exists():
        raise EditError(f"{ref} is a file, expected a checkpoint folder or a Hub id")
    name, _, at = str(ref).partition("@")
    if not _REPO_ID.fullmatch(name) or name.startswith("."):
        raise EditError(f"{ref} does not exist and is not a Hub id (org/name[@revision])")
    return _fetch(name, revision or at or None)


def _fetch(repo: str, revision: str | None) -> tuple[Path, str]:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    what = f"{repo}@{revision}" if revision else repo
    try:
        info = HfApi().model_info(repo, revision=revision)
        wanted = needed_files([sibling.rfilename for sibling in info.siblings or []])
        folder = snapshot_download(repo, revision=info.sha, allow_patterns=wanted)
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        if status in (401, 403):
            reason = "access is denied; log in with `hf auth login` and accept its terms"
        elif status == 404:
            reason = "no such model or revision on the Hub, and no such folder here"
        else:
            reason = str(error).splitlines()[0]
        raise EditError(f"{what}: {reason}") from None
    except (OfflineModeIsEnabled, OSError):
        try:
            folder = snapshot_download(repo, revision=revision, local_files_only=True)
        except (LocalEntryNotFoundError, OSError):
            raise EditError(
                f"{what} is no folder here, the Hub cannot be reached and its cache does not hold "
                "it; check the path or the network"
            ) from None
    return Path(folder), Path(folder).name


def needed_files(names: list[str]) -> list[str]:
    """Of a repository's files, those an edit reads or passes on: one format of the weights, the
    configs, the tokenizer."""
    indexed = "model.safetensors.index.json" in names
    keep = []
    for name in names:
        if "/" in name:
            continue
        if name.endswith(".safetensors"):
            if name.startswith("consolidated") or (indexed and name == "model.safetensors"):
                continue
            keep.append(name)
        elif name.endswith(".safetensors.index.json") or name in _WEIGHTS or is_side_file(name):
            keep.append(name)
    return keep
