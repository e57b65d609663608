"""Experts stored separately that make no whole parameter are refused, and take no memory."""

import pytest

from mergekit_rl import EditError
from mergekit_rl.io.adapter_layout import adapter_layout
from mergekit_rl.io.modules import Modules

AT = "model.layers.0.mlp.experts"
PLACES = ("gate_proj", "up_proj", "down_proj")


def layout(shapes: dict[str, tuple[int, ...]]):
    return adapter_layout(Modules(shapes, {}), dict.fromkeys(shapes, 1), "base")


def experts(*numbers: int) -> dict[str, tuple[int, ...]]:
    return {f"{AT}.{n}.{leaf}.weight": (4, 4) for n in numbers for leaf in PLACES}


def refusal(shapes: dict[str, tuple[int, ...]]) -> str:
    with pytest.raises(EditError) as caught:
        layout(shapes)
    return str(caught.value)


def test_whole_experts_are_packed():
    config, _ = layout(experts(0, 1, 2))
    assert config["target_parameters"] == [f"{AT}.down_proj", f"{AT}.gate_up_proj"]


@pytest.mark.parametrize("last", [7, 10**8])
def test_experts_with_a_hole_are_refused(last):
    assert refusal(experts(0, last)) == (
        f"{AT}.gate_up_proj is made of experts 0 to {last}, and expert 1 has no w1 or gate_proj: "
        "no adapter can address what is not whole"
    )


def test_half_of_an_expert_is_refused():
    shapes = experts(0, 1)
    del shapes[f"{AT}.1.up_proj.weight"]
    assert "expert 1 has no w3 or up_proj" in refusal(shapes)


@pytest.mark.parametrize("shape", [(4, 5), (4,), (2, 4, 4)])
def test_experts_of_unlike_shapes_are_refused(shape):
    shapes = experts(0, 1) | {f"{AT}.1.down_proj.weight": shape}
    assert refusal(shapes) == (
        f"{AT}.1.down_proj.weight is {shape} and {AT}.0.down_proj.weight is (4, 4): experts of one "
        "layer must be matrices of one shape for an adapter to address them"
    )


def test_one_expert_under_two_names_is_refused():
    shapes = experts(0) | {f"{AT}.00.up_proj.weight": (4, 4)}
    assert refusal(shapes) == (
        f"{AT}.0.up_proj.weight and {AT}.00.up_proj.weight are two tensors for one parameter"
    )
