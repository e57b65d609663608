"""What the tests share: no network, and tiny models built once per session."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RLEDIT_CACHE_LIMIT"] = "0"  # or a second run would show what the first computed

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # small matrices; and a busy machine slows down more than twofold else


@pytest.fixture(scope="session", autouse=True)
def _no_cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["RLEDIT_CACHE"] = str(tmp_path_factory.getbasetemp() / "cache")


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a cache of the test's own, which runs then use by default."""
    monkeypatch.setenv("RLEDIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RLEDIT_CACHE_LIMIT")
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """tiny(family): the folder of a tiny random model, built on first use; not to be changed."""
    from tiny_models import build

    built: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in built:
            built[family] = build(family, tmp_path_factory.mktemp("tiny") / family)
        return built[family]

    return get
