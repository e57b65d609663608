"""Digests see values and shapes, not the dtype or the pieces they come in."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mergekit_rl.io.digest import ValueDigest

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def digest(tensor: torch.Tensor, *sizes: int) -> str:
    """Of `tensor`, fed whole or in pieces of these sizes and a rest."""
    found = ValueDigest(tuple(tensor.shape))
    flat = tensor.reshape(-1)
    for size in sizes:
        found.update(flat[:size])
        flat = flat[size:]
    found.update(flat)
    return found.hexdigest()


def random(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_a_wider_copy_has_the_same_digest(stored):
    tensor = random(stored, 5, 7)
    wider = {digest(tensor.to(dtype)) for dtype in (stored, torch.float32, torch.float64)}
    assert len(wider) == 1


def test_bf16_and_fp16_copies_of_values_both_can_hold_agree():
    tensor = torch.tensor([1.0, -0.5, 0.0, 384.0])
    assert len({digest(tensor.to(dtype)) for dtype in FLOATS}) == 1


def test_subnormal_and_largest_values_survive_a_wider_copy():
    for dtype in (torch.bfloat16, torch.float16):
        info = torch.finfo(dtype)
        tensor = torch.tensor([info.smallest_normal / 4, info.max, info.min, -0.0]).to(dtype)
        assert digest(tensor) == digest(tensor.to(torch.float32))


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.floats(allow_nan=False, width=32), min_size=1, max_size=20),
    st.lists(st.integers(0, 8), max_size=5),
    st.sampled_from(FLOATS),
)
def test_the_pieces_do_not_matter(values, sizes, dtype):
    tensor = torch.tensor(values, dtype=torch.float64).to(dtype)
    tensor = tensor.nan_to_num(posinf=1.0, neginf=-1.0)
    assert digest(tensor, *sizes) == digest(tensor)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 34), st.sampled_from(FLOATS))
def test_any_changed_value_changes_it(at, dtype):
    tensor = random(dtype, 5, 7)
    changed = tensor.clone()
    towards = torch.tensor(torch.inf, dtype=torch.float32)
    step = torch.nextafter(changed.view(-1)[at].float(), towards)
    if dtype in (torch.float16, torch.bfloat16):
        bits = changed.view(torch.int16).view(-1)
        bits[at] += 1
    else:
        changed.view(-1)[at] = step.to(dtype)
    assert not torch.equal(changed, tensor)
    assert digest(changed) != digest(tensor)


def test_the_sign_of_zero_and_the_order_change_it():
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))
    assert digest(torch.tensor([1.0, 2.0])) != digest(torch.tensor([2.0, 1.0]))


def test_the_shape_changes_it():
    tensor = random(torch.float32, 6)
    assert len({digest(tensor.reshape(s)) for s in ((6,), (2, 3), (3, 2), (6, 1))}) == 4
    assert digest(torch.zeros(0, 4)) != digest(torch.zeros(0, 5))


def test_a_scalar_has_one():
    assert digest(torch.tensor(1.0)) != digest(torch.tensor(2.0))
    assert digest(torch.tensor(1.0)) != digest(torch.tensor([1.0]))


def test_an_empty_tensor_has_one_digest_fed_or_not():
    assert ValueDigest((0, 4)).hexdigest() == digest(torch.zeros(0, 4))


def test_integers_and_flags_have_one():
    assert digest(torch.tensor([1, 2])) != digest(torch.tensor([1, 3]))
    assert digest(torch.tensor([True])) != digest(torch.tensor([False]))


def test_a_late_wide_value_is_seen():
    narrow = torch.ones(10)
    wide = narrow.clone()
    wide[-1] = 1 + 2**-20
    assert digest(wide, 5) == digest(wide) != digest(narrow)


def test_rows_of_a_transposed_view_are_hashed_in_row_major_order():
    tensor = random(torch.float32, 4, 3)
    found = ValueDigest((3, 4))
    found.update(tensor.T)
    assert found.hexdigest() == digest(tensor.T.contiguous())
