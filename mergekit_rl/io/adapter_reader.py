"""Sorting an adapter's keys into low-rank deltas and replacements of its base's tensors."""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from mergekit_rl.errors import EditError
from mergekit_rl.io.adapter_config import LoraConfig
from mergekit_rl.io.checkpoint import FLOATS, Checkpoint
from mergekit_rl.io.header import TensorInfo, read_header
from mergekit_rl.io.low_rank import LowRank, Rows
from mergekit_rl.io.modules import REGISTERED, Modules

_KEY = re.compile(
    r"(?P<module>.+)\.(?:(?P<linear>lora_[AB])\.weight|(?P<embedding>lora_embedding_[AB]))"
)
_ROWS = ".token_adapter.trainable_tokens_delta"


class AdapterReader:
    """What an adapter file says of its base's tensors: `read` fills the two tables.

    Attributes:
        low_rank: {tensor name: its factors}.
        replaced: {tensor name: a whole tensor, or rows, of the adapter's file}.
    """

    def __init__(self, path: Path, config: LoraConfig, base: Checkpoint) -> None:
        self.path = path
        self.config = config
        self.infos, _ = read_header(path)
        self.modules = Modules({n: info.shape for n, info in base.tensors.items()}, base.config)
        self.low_rank: dict[str, LowRank] = {}
        self.replaced: dict[str, TensorInfo | Rows] = {}
        self._base = base
        self._file = Checkpoint(str(path), path.parent, None, {}, self.infos)

    def read(self) -> None:
        pairs: dict[tuple[str, bool], dict[str, TensorInfo]] = {}
        for key, info in self.infos.items():
            if info.dtype not in FLOATS:
                raise EditError(f"{self.path}: {key!r} is {info.dtype}, expected a float dtype")
            path = key.removeprefix("base_model.model.")
            match = _KEY.fullmatch(path)
            if match:
                which = (match["linear"] or match["embedding"])[-1]
                pair = pairs.setdefault((match["module"], bool(match["embedding"])), {})
                if which in pair:
                    raise EditError(f"{self.path} holds lora_{which} of {match['module']} twice")
                pair[which] = info
            else:
                self._other(key, path, info)
        for (module, _), pair in pairs.items():
            if set(pair) != {"A", "B"}:
                missing = "B" if "A" in pair else "A"
                raise EditError(f"{self.path}: {module} has no lora_{missing}")
        self._split_parameters(pairs)
        heads = {}
        for (module, is_embedding), pair in pairs.items():
            name = self._stored(f"{module}.weight")
            if name is None:
                heads[module] = pair
            else:
                self._matrix(name, module, pair, is_embedding)
        self._tied(heads)
        for name, new in self.replaced.items():
            if name in self.low_rank and isinstance(new, TensorInfo):
                raise EditError(
                    f"{self.path} replaces {name!r} (modules_to_save) and adapts it with factors; "
                    "train one of them, or merge it with PEFT"
                )

    # Keys that are no factors

    def _other(self, key: str, path: str, info: TensorInfo) -> None:
        if path.endswith(_ROWS):
            self._token_rows(path.removesuffix(_ROWS), info)
        elif path.endswith(".base_layer.weight"):
            self._copy_of_base(key, path, info)
        elif path.endswith("lora_velora_embed"):
            pass  # used in the backward pass only
        elif "lora_" in path:
            raise EditError(f"{self.path}: {key!r} is no plain LoRA factor; merge it with PEFT")
        else:
            name = self._stored(path)
            if name is None or (name == self.modules.embedding and self.modules.tied_head):
                raise EditError(
                    f"{self.path}: {key!r} replaces one side of a tied embedding; untie the base"
                )
            self._same_shape(key, info, name)
            self._replace(name, info)

    def _token_rows(self, module: str, info: TensorInfo) -> None:
        name = self._stored(f"{module}.weight")
        rows = self.config.token_rows
        if isinstance(rows, Mapping):
            rows = next((r for m, r in rows.items() if _is_tail(m, module)), ())
        shape = self.modules.shapes[name] if name else (0,)
        if info.shape != (len(rows), *shape[1:]) or any(i >= shape[0] for i in rows):
            raise EditError(
                f"{self.path}: the trained token rows of {module} are {info.shape}, and the config "
                f"lists {len(rows)} rows of {shape}"
            )
        self._replace(name, Rows(rows, info))

    def _copy_of_base(self, key: str, path: str, info: TensorInfo) -> None:
        name = self._stored(path.replace(".base_layer.weight", ".weight"))
        name = self.modules.embedding if name is None else name
        self._same_shape(key, info, name)
        copy = self._file.read(key)  # in the dtype that training had
        if not torch.equal(copy, self._base.read(name).to(copy.dtype)):
            raise EditError(f"{self.path}: {key!r} differs from the base's {name!r}: another base")

    # Factors

    def _matrix(self, name: str, module: str, pair: Mapping[str, TensorInfo], embedding: bool):
        flipped = embedding or (
            self.modules.transposed_linears and not module.endswith(("lm_head", "embed_out"))
        )
        self._add(name, module, pair, flipped)

    def _add(self, name: str, module: str, pair: Mapping[str, TensorInfo], flipped: bool) -> None:
        a, b = pair["A"], pair["B"]
        shape = self.modules.shapes[name]
        r = a.shape[0] if a.shape else 0
        out, inner = shape if len(shape) == 2 else (0, 0)
        if flipped:
            out, inner = inner, out
        if len(shape) != 2 or r < 1 or (b.shape, a.shape) != ((out, r), (r, inner)):
            raise EditError(
                f"{self.path}: the factors of {module} are {b.shape} and {a.shape}, and {name} of "
                f"the base is {shape}: it was trained on another base"
            )

        def load() -> tuple[Tensor, Tensor]:
            b_, a_ = self._factor(b), self._factor(a)
            return (a_.T.contiguous(), b_.T.contiguous()) if flipped else (b_, a_)

        self._adapt(name, LowRank(load, self.config.scaling(module, r)))

    def _adapt(self, name: str, low_rank: LowRank) -> None:
        if name in self.low_rank:
            raise EditError(f"{self.path} adapts {name!r} twice, under two keys")
        self.low_rank[name] = low_rank

    def _replace(self, name: str, new: TensorInfo | Rows) -> None:
        if name in self.replaced:
            raise EditError(f"{self.path} replaces {name!r} twice, under two keys")
        self.replaced[name] = new

    def _factor(self, info: TensorInfo) -> Tensor:
        return self._file.read(info.name).to(torch.float32)

    def _tied(self, heads: Mapping[str, Mapping[str, TensorInfo]]) -> None:
        """A tied head's own factors must say what the embedding's do."""
        embedding = self.modules.embedding
        both = embedding in self.low_rank
        if self.modules.tied_head and (both != bool(heads)):
            side = "embedding" if both else "output head"
            raise EditError(
                f"{self.path} adapts only the {side}, and the base ties embedding and head: untie "
                "the base first"
            )
        for module, pair in heads.items():
            kept = self.low_rank.pop(embedding)
            self._add(embedding, module, pair, False)
            if not torch.allclose(kept.delta(), self.low_rank[embedding].delta(), atol=1e-6):
                raise EditError(
                    f"{self.path} adapts embedding and head differently, and the base ties them"
                )
            self.low_rank[embedding] = kept

    def _split_parameters(self, pairs: dict[tuple[str, bool], dict[str, TensorInfo]]) -> None:
        """Takes the factors of raw parameters and packed experts out of `pairs`."""
        wrapped: dict[str, dict[int, dict[str, TensorInfo]]] = {}
        for module, embedding in list(pairs):
            root = re.sub(r"(\.base_layer)+$", "", module)
            if not embedding and (module != root or self._parameters(root)):
                depth = module.count(".base_layer")
                wrapped.setdefault(root, {})[depth] = pairs.pop((module, embedding))
        for root, by_depth in wrapped.items():
            parameters = self._parameters(root)
            if len(parameters) != len(by_depth) or set(by_depth) != set(range(len(by_depth))):
                raise EditError(
                    f"{self.path}: {root} has {len(by_depth)} pairs of factors, and "
                    f"target_parameters names {', '.join(parameters) or 'none'} of it"
                )
            for depth, leaf in enumerate(reversed(parameters)):
                self._parameter(f"{root}.{leaf}", by_depth[depth])

    def _parameters(self, root: str) -> list[str]:
        """The parameters of a module that the config targets, in order of registration."""
        return [
            leaf
            for leaf in REGISTERED
            if self.config.targets_parameter(f"{root}.{leaf}")
            and (
                f"{root}.{leaf}" in self.modules.stored or f"{root}.{leaf}" in self.modules.experts
            )
        ]

    def _parameter(self, path: str, pair: Mapping[str, TensorInfo]) -> None:
        parts = self.modules.experts.get(path)
        if parts is None:
            name = self.modules.stored[path]
            if len(self.modules.shapes[name]) == 3:
                self._stack(name, path, pair)
            else:
                self._add(name, path, pair, False)
            return
        experts, places, out, inner = self.modules.packed_shape(path)
        r = self._stack_rank(path, pair, experts, places * out, inner)
        scaling = self.config.scaling(path, r)
        for (expert, place), name in parts.items():

            def load(expert=expert, place=place) -> tuple[Tensor, Tensor]:
                a = self._file.read(pair["A"].name)[expert * r : (expert + 1) * r]
                b = self._file.read(pair["B"].name)[place * out : (place + 1) * out]
                b = b[:, expert::experts]
                return b.to(torch.float32).contiguous(), a.to(torch.float32).contiguous()

            self._adapt(name, LowRank(load, scaling))

    def _stack(self, name: str, path: str, pair: Mapping[str, TensorInfo]) -> None:
        experts, out, inner = self.modules.shapes[name]
        flipped = self.modules.transposed_experts
        if flipped:
            out, inner = inner, out
        r = self._stack_rank(path, pair, experts, out, inner)

        def load() -> tuple[Tensor, Tensor]:
            a = self._factor(pair["A"]).reshape(experts, r, inner)
            b = self._factor(pair["B"]).reshape(out, r, experts).permute(2, 0, 1)
            if flipped:
                return a.transpose(1, 2).contiguous(), b.transpose(1, 2).contiguous()
            return b.contiguous(), a

        self._adapt(name, LowRank(load, self.config.scaling(path, r)))

    def _stack_rank(
        self, path: str, pair: Mapping[str, TensorInfo], experts: int, out: int, inner: int
    ) -> int:
        a, b = pair["A"].shape, pair["B"].shape
        r = a[0] // experts if len(a) == 2 else 0
        if r < 1 or a != (experts * r, inner) or b != (out, experts * r):
            raise EditError(
                f"{self.path}: the factors of {path} are {b} and {a}, expected ({out}, "
                f"{experts}·r) and ({experts}·r, {inner}) for its {experts} experts"
            )
        return r

    # Names

    def _stored(self, parameter: str) -> str | None:
        """The base's tensor for a parameter path; None for the head of a tied embedding."""
        if parameter in self.modules.stored:
            return self.modules.stored[parameter]
        if parameter in self.modules.shapes:
            return parameter
        module = parameter.rpartition(".")[0]
        if _is_tail("lm_head", module) or _is_tail("embed_out", module):
            if self.modules.tied_head and self.modules.embedding:
                return None
        tails = [
            name
            for path, name in self.modules.stored.items()
            if _is_tail(parameter, path) or _is_tail(parameter, name)
        ]
        if len(tails) == 1:
            return tails[0]
        raise EditError(
            f"{self.path}: {parameter!r} belongs to no tensor of {self._base.ref}: "
            "it was trained on another base"
        )

    def _same_shape(self, key: str, info: TensorInfo, name: str) -> None:
        shape = self.modules.shapes[name]
        if info.shape != shape:
            raise EditError(
                f"{self.path}: {key!r} is {info.shape}, and {name} of the base is {shape}: "
                "resized embeddings are not merged; use PEFT"
            )


def _is_tail(tail: str, path: str) -> bool:
    return path == tail or path.endswith(f".{tail}")
