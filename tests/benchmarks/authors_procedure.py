"""SAR by the straightforward route: both models whole in fp32, full SVDs, one matrix at a time.

Written from the description of the authors' procedure (Zhang et al., 2026, arXiv:2607.03065), to
be timed and compared against. It shares nothing with the package.

    python authors_procedure.py BASE RL OUT
"""

import sys
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
DELTA_FRACTION = 0.01


def rewire(base: Tensor, rl: Tensor) -> Tensor:
    """Return W0 + U M Vᵀ with M = Uᵀ Δ_k V, every singular vector of W0 kept.

    Args:
        base: W0 (m, n), fp32.
        rl: W1 (m, n), fp32.
    """
    U, _, Vh = torch.linalg.svd(base, full_matrices=False)  # (m, r), (r,), (r, n)
    Ud, Sd, Vdh = torch.linalg.svd(rl - base, full_matrices=False)
    k = max(1, int(DELTA_FRACTION * len(Sd)))
    delta_k = (Ud[:, :k] * Sd[:k]) @ Vdh[:k]  # (m, n)
    M = U.T @ delta_k @ Vh.T  # (r, r)
    return base + U @ M @ Vh


@torch.no_grad()
def main(base_folder: str, rl_folder: str, out: str) -> None:
    """Write the edited model and the tokenizer to `out`, in the RL checkpoint's dtype."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    base = AutoModelForCausalLM.from_pretrained(base_folder, dtype=torch.float32)
    rl = AutoModelForCausalLM.from_pretrained(rl_folder, dtype=torch.float32)
    rl_weights = dict(rl.named_parameters())
    for name, weight in base.named_parameters():
        if name.endswith(tuple(f".{target}.weight" for target in TARGETS)):
            weight.copy_(rewire(weight, rl_weights[name]))
    dtype = AutoConfig.from_pretrained(rl_folder).dtype
    base.to(dtype).save_pretrained(out)
    if (Path(rl_folder) / "tokenizer_config.json").exists():
        AutoTokenizer.from_pretrained(rl_folder).save_pretrained(out)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: authors_procedure.py BASE RL OUT")
    main(*sys.argv[1:])
