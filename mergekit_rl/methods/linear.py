"""Weighted averages of models."""

from torch import Tensor

from mergekit_rl.errors import EditError
from mergekit_rl.registry import Context, PerModel, method


def _check(*, weight: list[float], normalize: bool) -> None:
    if normalize and abs(sum(weight)) <= 1e-12 * sum(map(abs, weight)):
        raise EditError(
            "the weights sum to zero, so there is no average: change them, or set "
            "normalize: false for their sum"
        )


@method(takes="tensors", base="input", elementwise=True, check=_check)
def linear(
    base: Tensor | None,
    tensors: list[Tensor],
    *,
    weight: PerModel[float],
    normalize: bool = True,
    ctx: Context,
) -> Tensor:
    """Average the models by weight: Σwᵢxᵢ / Σwᵢ, or Σwᵢxᵢ without `normalize`.

    Args:
        weight: of each model.
        normalize: divide by the sum of the weights.

    Raises:
        EditError: the weights to normalise by sum to zero.

    Source: model soups (Wortsman et al., 2022, arXiv:2203.05482).
    """
    _check(weight=weight, normalize=normalize)
    total = sum(weight) if normalize else 1.0
    out = tensors[0] * (weight[0] / total)
    for tensor, w in zip(tensors[1:], weight[1:], strict=True):
        out.add_(tensor, alpha=w / total)
    return out
