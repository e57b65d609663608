"""The same work on CUDA devices: within the stated tolerance of the CPU's, and of one another."""

import pytest
import torch
from pairs import contents, make_pair

from mergekit_rl import Checkpoint, sar
from mergekit_rl.pipeline.inspect import inspect

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
OPTIONS = [
    {},
    {"base_rank": 0.2},
    {"projection": "random"},
    {"mask": "diagonal", "base_rank": 5},
    {"order": "project-first"},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_core_on_cuda_is_that_of_the_cpu(tmp_path, options):
    base, rl = make_pair(tmp_path, hidden=256, inner=700)
    opened = Checkpoint.open(base)
    cores = []
    for device in ("cpu", "cuda:0"):
        sar(base, rl, tmp_path / device[:4], device=device, **options)
        cores.append(Checkpoint.open(tmp_path / device[:4], base=opened))
    for name in cores[0].low_rank:
        w0 = opened.read(name)
        a, b = (core.delta(name)(w0) for core in cores)
        assert (a - b).norm() <= 2e-5 * a.norm(), name


def test_every_cuda_device_together_gives_the_bytes_of_one(tmp_path):
    base, rl = make_pair(tmp_path, hidden=256, inner=700)
    for device in ("cuda:0", "cuda"):
        sar(base, rl, tmp_path / device.replace(":", ""), device=device, save="both")
    assert contents(tmp_path / "cuda0") == contents(tmp_path / "cuda")


def test_inspect_on_cuda_measures_what_the_cpu_does(tmp_path):
    base, rl = make_pair(tmp_path, hidden=128, inner=300)
    cpu, cuda = (inspect(base, [rl], device=device) for device in ("cpu", "cuda:0"))
    for a, b in zip(cpu.rows, cuda.rows, strict=True):
        for key, value in a.items():
            if isinstance(value, float):
                assert b[key] == pytest.approx(value, rel=1e-3, abs=1e-6), key
