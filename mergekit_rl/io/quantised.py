"""Quantised weights, recognised by config, tensor names and dtypes, and refused by name."""

import re
from collections.abc import Mapping
from typing import Any

from mergekit_rl.errors import EditError
from mergekit_rl.io.header import TensorInfo, is_name

_BY_NAME = (
    (re.compile(r"\.(qweight|qzeros|g_idx)$"), "GPTQ or AWQ"),
    (re.compile(r"_blocks$"), "MXFP4"),
    (re.compile(r"\.weight\.(absmax|quant_map|quant_state\..+|nested_absmax)$"), "bitsandbytes"),
    (re.compile(r"\.(SCB|weight_format)$"), "bitsandbytes 8-bit"),
    (re.compile(r"\.weight_packed$"), "compressed-tensors"),
    (re.compile(r"weight_scale(_inv|_2)?$"), "FP8 or INT8 with scales"),
)
_REMEDY = "save the model dequantised (bf16 or fp32) and use that folder"


def refuse_quantised(where: str, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]):
    """Raises EditError where a checkpoint's weights are stored quantised."""
    for holder in (config, config.get("text_config")):
        if not isinstance(holder, Mapping):
            continue
        for key in ("quantization_config", "compression_config"):
            if holder.get(key):
                method = holder[key].get("quant_method") if isinstance(holder[key], dict) else None
                raise EditError(
                    f"{where} is quantised ({key} of its config.json: "
                    f"{method if _is_word(method) else 'method not named'}); {_REMEDY}"
                )
    for name, info in tensors.items():
        for pattern, method in _BY_NAME:
            if pattern.search(name):
                raise EditError(f"{where} is quantised ({method}: {name!r}); {_REMEDY}")
        if name.endswith("_scales") and name.removesuffix("scales") + "blocks" in tensors:
            raise EditError(f"{where} is quantised (MXFP4: {name!r}); {_REMEDY}")
        packed = info.dtype.startswith(("F8_", "F6_")) or info.dtype == "F4"
        if packed or (info.dtype in ("I8", "U8") and len(info.shape) in (2, 3)):  # 4-D: old masks
            raise EditError(f"{where} is quantised ({name!r} is {info.dtype}); {_REMEDY}")


def _is_word(value: object) -> bool:
    return isinstance(value, str) and is_name(value)
