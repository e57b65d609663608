"""Hub ids: from the cache without a network, from a server on this machine with one."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from mergekit_rl.io.hub import needed_files

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OLDER = "89abcdef0123456789abcdef0123456789abcdef"
SCRIPT = """
import json, sys
from mergekit_rl import Checkpoint, EditError
for ref, revision in json.loads(sys.argv[1]):
    try:
        found = Checkpoint.open(ref, revision=revision)
    except EditError as error:
        print(json.dumps({"error": str(error)}))
    else:
        print(json.dumps({
            "names": sorted(found.tensors), "first": float(next(found.pieces("a"))[0]),
            "name": found.name, "revision": found.revision, "fingerprint": found.fingerprint(),
            "files": sorted(path.name for path in found.folder.iterdir()),
        }))
"""
Given = str | tuple[str, str]
"""A reference, or a reference and a revision."""


def weights(value: float) -> bytes:
    return save({"a": torch.full((2,), value), "b": torch.ones(3)})


def opened(home: Path, *given: Given, endpoint: str = "") -> list[dict]:
    """What `Checkpoint.open` finds, in a process of its own, as huggingface_hub reads its settings
    once; without an endpoint it is offline."""
    refs = [(one, None) if isinstance(one, str) else one for one in given]
    settings = {"HF_ENDPOINT": endpoint} if endpoint else {"HF_HUB_OFFLINE": "1"}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    kept |= {"HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(refs)],
        env=kept | settings, capture_output=True, text=True, timeout=120, cwd=home,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def cached(home: Path, files: dict[str, bytes], commit: str = COMMIT, ref: str = "main") -> Path:
    """The Hub's cache of org/name as huggingface_hub lays it out; its snapshot folder."""
    root = home / "hub" / "models--org--name"
    snapshot = root / "snapshots" / commit
    for folder in (root / "blobs", root / "refs", snapshot):
        folder.mkdir(parents=True, exist_ok=True)
    (root / "refs" / ref).write_text(commit)
    for name, content in files.items():
        blob = root / "blobs" / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        (snapshot / name).symlink_to(Path("..", "..", "blobs", blob.name))
    return snapshot


# Without a network


def test_a_cached_model_opens_offline(tmp_path):
    cached(tmp_path, {"model.safetensors": weights(1), "config.json": b"{}"})
    [found] = opened(tmp_path, "org/name")
    assert (found["names"], found["first"]) == (["a", "b"], 1)
    assert (found["name"], found["revision"]) == ("org/name", COMMIT)
    assert found["fingerprint"] == [f"org/name@{COMMIT}"]


def test_a_revision_selects_its_snapshot_offline(tmp_path):
    cached(tmp_path, {"model.safetensors": weights(1)})
    cached(tmp_path, {"model.safetensors": weights(2)}, OLDER, "v1")
    found = opened(tmp_path, "org/name", "org/name@v1", ("org/name", "v1"), f"org/name@{OLDER}")
    assert [one["first"] for one in found] == [1, 2, 2, 2]


def test_what_is_not_cached_is_refused_offline(tmp_path):
    cached(tmp_path, {"model.safetensors": weights(1)})
    assert opened(tmp_path, "org/other", "org/name@v2") == [
        {
            "error": f"{ref} is no folder here, the Hub cannot be reached and its cache does not "
            "hold it; check the path or the network"
        }
        for ref in ("org/other", "org/name@v2")
    ]


def test_a_shard_that_was_never_fetched_is_named_offline(tmp_path):
    index = json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}}).encode()
    snapshot = cached(tmp_path, {"model.safetensors.index.json": index})
    assert opened(tmp_path, "org/name") == [
        {
            "error": f"{snapshot}/model.safetensors.index.json names "
            f"'model-00001-of-00001.safetensors', which {snapshot} does not hold; fetch it again"
        }
    ]


def test_what_the_hub_does_not_allow_as_a_name_is_no_hub_id(tmp_path):
    assert opened(tmp_path, "no--such", "a..b") == [
        {
            "error": f"{ref} does not exist and is not a Hub id: Cannot have -- or .. in repo_id: "
            f"'{ref}'."
        }
        for ref in ("no--such", "a..b")
    ]


# With a network


class FakeHub(ThreadingHTTPServer):
    """Serves {repository: {file: content}} as the Hub does, and records what was fetched."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.status: dict[str, tuple[int, str]] = {}
        self.fetched: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def do_GET(self) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        repo, rest = "/".join(parts[2:4] if api else parts[:2]), parts[4:] if api else parts[2:]
        if repo in self.server.status:
            return self._answer(self.server.status[repo][0], error=self.server.status[repo][1])
        files = self.server.repos.get(repo)
        if files is None:
            return self._answer(404, error="RepoNotFound")
        if rest[:1] == ["revision"] or not rest:
            if rest[1:] and rest[1] not in ("main", COMMIT):
                return self._answer(404, error="RevisionNotFound")
            siblings = [{"rfilename": name} for name in files]
            content = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings}
            return self._answer(200, json.dumps(content).encode())
        if rest[0] == "tree":
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": _hash(content)}
                for name, content in files.items()
            ]
            return self._answer(200, json.dumps(tree).encode())
        name = "/".join(rest[2:])
        if self.command == "GET":
            self.server.fetched.append(name)
        return self._answer(200, files[name])

    do_HEAD = do_GET

    def _answer(self, status: int, content: bytes = b"", error: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{_hash(content)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if error:
            self.send_header("X-Error-Code", error)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def _hash(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_only_what_an_edit_needs_is_fetched_and_then_serves_offline(hub, tmp_path):
    needed = {"model.safetensors": weights(3), "config.json": b"{}", "vocab.json": b"[]"}
    rest = {"pytorch_model.bin": b"x", "README.md": b"x", "optimizer.pt": b"x", "a/b.json": b"{}"}
    hub.repos["org/name"] = needed | rest
    [online] = opened(tmp_path, "org/name", endpoint=hub.url)
    assert (online["first"], online["revision"]) == (3, COMMIT)
    assert online["files"] == sorted(hub.fetched) == sorted(needed)
    assert opened(tmp_path, "org/name", f"org/name@{COMMIT}") == [online, online]


def test_a_hub_that_cannot_be_reached_or_fails_leaves_the_cache(hub, tmp_path):
    cached(tmp_path, {"model.safetensors": weights(1)})
    assert opened(tmp_path, "org/name", endpoint="http://127.0.0.1:1")[0]["first"] == 1
    hub.status["org/name"] = (503, "")
    assert opened(tmp_path, "org/name", endpoint=hub.url)[0]["first"] == 1


REFUSED = {
    "org/typo": ": no such model or revision on the Hub, and no such folder here; a private one "
    "needs `hf auth login`",
    "org/name@v9": ": no such model or revision on the Hub, and no such folder here; a private one "
    "needs `hf auth login`",
    "org/private": ": no such model or revision on the Hub, and no such folder here; a private one "
    "needs `hf auth login`",
    "org/gated": ": access is denied; log in with `hf auth login` and accept its terms",
    "org/badtoken": ": the Hub does not accept your token; log in again with `hf auth login`",
    "org/pickled": " holds a pickled checkpoint and no safetensors file; convert it first: "
    "AutoModelForCausalLM.from_pretrained(…).save_pretrained(…) of transformers writes safetensors",
    "org/deepspeed": " holds a DeepSpeed ZeRO checkpoint and no safetensors file; convert it "
    "first: zero_to_fp32.py DIR OUT --safe_serialization",
    "org/empty": " holds no safetensors file, expected a checkpoint folder",
}


def test_what_the_hub_does_not_give_is_refused_with_the_reason(hub, tmp_path):
    hub.repos |= {
        "org/name": {"model.safetensors": weights(1)},
        "org/pickled": {"pytorch_model.bin": b"x", "config.json": b"{}"},
        "org/deepspeed": {"global_step5/mp_rank_00_model_states.pt": b"x"},
        "org/empty": {"README.md": b"x"},
    }
    hub.status |= {
        "org/private": (401, "RepoNotFound"),
        "org/gated": (403, "GatedRepo"),
        "org/badtoken": (401, ""),
    }
    found = opened(tmp_path, *REFUSED, endpoint=hub.url)
    assert [one["error"] for one in found] == [ref + text for ref, text in REFUSED.items()]
    assert hub.fetched == []


# Which files are needed


def test_one_format_of_the_weights_is_needed():
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = "model.safetensors.index.json"
    assert needed_files([*shards, index, "consolidated.safetensors"]) == [*shards, index]
    assert needed_files(["model.safetensors", *shards, index]) == ["model.safetensors"]


def test_an_adapter_and_a_core_are_needed_whole():
    names = ["adapter_model.safetensors", "adapter_config.json", "core.json", "tokenizer.json"]
    assert needed_files([*names, "adapter_model.bin", "training_args.bin"]) == names
