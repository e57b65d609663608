"""A model reference to a local folder: a path as it is, a Hub id through the cache."""

import re
from pathlib import Path
from typing import Any

from mergekit_rl.errors import EditError
from mergekit_rl.io.folder import INDEX, is_shard, no_weights
from mergekit_rl.io.sidefiles import is_side_file

_REPO_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_DESCRIBED = ("core.json", "adapter_config.json")


def locate(ref: str | Path, revision: str | None = None) -> tuple[Path, str | None]:
    """The folder of `ref` and, for a Hub id, the commit it was resolved to.

    An existing path wins; `org/name@revision` names a revision. Only the files an edit needs are
    fetched; without a network the cache serves.

    Raises:
        EditError: neither a folder nor a Hub id that can be fetched or is cached.
    """
    if not str(ref):
        raise EditError("an empty name was given, expected a checkpoint folder or a Hub id")
    path = Path(ref)
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except OSError as error:
        raise EditError(f"{ref} cannot be looked up: {error.strerror}") from None
    if is_folder:
        if revision:
            raise EditError(f"{ref} is a folder, and a folder has no revision {revision!r}")
        return path, None
    if exists:
        raise EditError(f"{ref} is a file, expected a checkpoint folder or a Hub id")
    name, _, at = str(ref).partition("@")
    if not _REPO_ID.fullmatch(name) or name.startswith("."):
        raise EditError(f"{ref} does not exist and is not a Hub id (org/name[@revision])")
    return _fetch(name, revision or at or None)


def _fetch(repo: str, revision: str | None) -> tuple[Path, str]:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError

    what = f"{repo}@{revision}" if revision else repo
    try:
        info = HfApi().model_info(repo, revision=revision)
        names = [sibling.rfilename for sibling in info.siblings or []]
        wanted = needed_files(names)
        if not any(name.endswith(".safetensors") for name in wanted):
            raise no_weights(what, names)
        # By the name that was given, so that the cache knows it when there is no network.
        folder = snapshot_download(repo, revision=revision, allow_patterns=wanted)
    except HFValidationError as error:
        raise EditError(f"{what} does not exist and is not a Hub id: {error}") from None
    except HfHubHTTPError as error:
        reason = _refusal(error)
        if reason:
            raise EditError(f"{what}: {reason}") from None
        folder = _cached(repo, revision, what)
    except (HTTPError, OSError):
        folder = _cached(repo, revision, what)
    return Path(folder), Path(folder).name


def _refusal(error: Any) -> str | None:
    """Why the Hub does not give a model; None where it is the Hub that fails."""
    from huggingface_hub.errors import (
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    status = getattr(error.response, "status_code", 500)
    if isinstance(error, GatedRepoError) or status == 403:
        return "access is denied; log in with `hf auth login` and accept its terms"
    if isinstance(error, RepositoryNotFoundError | RevisionNotFoundError):
        return (
            "no such model or revision on the Hub, and no such folder here; a private one needs "
            "`hf auth login`"
        )
    if status == 401:
        return "the Hub does not accept your token; log in again with `hf auth login`"
    return None if status >= 500 else str(error).strip().splitlines()[0]


def _cached(repo: str, revision: str | None, what: str) -> str:
    """The folder of the Hub's cache that holds a model. What an edit does not need was never
    fetched, so a snapshot that lacks files of the repository is no fault."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return snapshot_download(repo, revision=revision, local_files_only=True)
    except LocalEntryNotFoundError as error:
        partial = getattr(error, "snapshot_path", None)
        if partial:
            return partial
    raise EditError(
        f"{what} is no folder here, the Hub cannot be reached and its cache does not hold it; "
        "check the path or the network"
    )


def needed_files(names: list[str]) -> list[str]:
    """Of a repository's files, those an edit reads or passes on: one format of the weights, the
    configs, the tokenizer."""
    single = "model.safetensors" in names
    keep = []
    for name in names:
        if "/" in name:
            continue
        if name.endswith(".safetensors"):
            if name.startswith("consolidated") or (single and is_shard(name)):
                continue
            keep.append(name)
        elif (name == INDEX and not single) or name in _DESCRIBED or is_side_file(name):
            keep.append(name)
    return keep
