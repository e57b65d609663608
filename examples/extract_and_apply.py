"""The library in a few lines: extract a core, look at it, make the whole model.

python examples/extract_and_apply.py BASE RL OUT
"""

import sys

from mergekit_rl import Checkpoint, apply_core, sar

if len(sys.argv) != 4:
    sys.exit(__doc__)
base, rl, out = sys.argv[1:]
summary = sar(base, rl, f"{out}-core", rank=0.05)
print(f"kept {summary.kept:.1%} of the update in {summary.factor_numbers:,} numbers")
print(f"the projection kept {summary.projection_share:.2f}, chance {summary.chance:.2f}")

edited = Checkpoint.open(f"{out}-core", base=Checkpoint.open(base))  # nothing is read yet
name = next(name for name in edited.tensors if "down_proj" in name)
print(name, edited.tensors[name].shape, edited.read(name).norm())

apply_core(base, f"{out}-core", f"{out}-model")
