"""The merge methods once more, in fp64 NumPy from their formulas: slow, plain, independent.

Each takes the base (or None), the models as arrays, the settings as the method's function does,
and `masks`, the entries that random methods keep, where they draw any.
"""

import numpy as np

REFERENCES = {}


def reference(function):
    REFERENCES[function.__name__] = function
    return function


def by_magnitude(delta):
    """Flat places from the largest magnitude to the smallest, equal ones in their order."""
    return np.argsort(-np.abs(delta).reshape(-1), kind="stable")


def only(delta, places):
    kept = np.zeros(delta.size)
    kept[places] = delta.reshape(-1)[places]
    return kept.reshape(delta.shape)


def magnitude(delta, density):
    return only(delta, by_magnitude(delta)[: max(1, int(density * delta.size))])


def outliers(delta, density, gamma):
    kept = int(density * delta.size)
    top = min(int(gamma * delta.size), delta.size - kept)
    return only(delta, by_magnitude(delta)[top : top + kept])


def rescaled(kept, delta):
    size = np.abs(kept).sum()
    return kept * (np.abs(delta).sum() / size) if size > 0 else kept


def summed(base, kept, weight, normalize, lambda_):
    total = sum(weight)
    by = total if normalize and abs(total) >= 1e-8 else 1.0
    return base + lambda_ * sum(w * k for w, k in zip(weight, kept, strict=True)) / by


def voted(base, kept, weight, normalize, lambda_, vote, least=None):
    terms = [w * k for w, k in zip(weight, kept, strict=True)]
    ballots = terms if vote == "weighted" else kept
    winner = np.where(sum(ballots) >= 0, 1.0, -1.0)
    agree = [(np.sign(ballot) == winner).astype(float) for ballot in ballots]
    merged = sum(m * term for m, term in zip(agree, terms, strict=True))
    if normalize:
        by = sum(m * w for m, w in zip(agree, weight, strict=True))
        merged = merged / (np.where(by == 0, 1.0, by) if least is None else np.maximum(by, least))
    return base + lambda_ * merged


def deltas_of(base, models):
    return [model - base for model in models]


@reference
def task_arithmetic(base, models, *, weight, normalize, lambda_, masks):
    return summed(base, deltas_of(base, models), weight, normalize, lambda_)


@reference
def ties(base, models, *, weight, density, normalize, lambda_, rescale, vote, masks):
    deltas = deltas_of(base, models)
    kept = [magnitude(d, share) if d.size else d for d, share in zip(deltas, density, strict=True)]
    if rescale:
        kept = [rescaled(k, d) for k, d in zip(kept, deltas, strict=True)]
    return voted(base, kept, weight, normalize, lambda_, vote)


def breadcrumbs_kept(base, models, density, gamma, rescale):
    deltas = deltas_of(base, models)
    kept = [outliers(*one) for one in zip(deltas, density, gamma, strict=True)]
    return [rescaled(*one) for one in zip(kept, deltas, strict=True)] if rescale else kept


@reference
def breadcrumbs(base, models, *, weight, density, gamma, normalize, lambda_, rescale, masks):
    kept = breadcrumbs_kept(base, models, density, gamma, rescale)
    return summed(base, kept, weight, normalize, lambda_)


@reference
def breadcrumbs_ties(
    base, models, *, weight, density, gamma, normalize, lambda_, rescale, vote, masks
):
    kept = breadcrumbs_kept(base, models, density, gamma, rescale)
    return voted(base, kept, weight, normalize, lambda_, vote)


def drawn(base, models, masks, density, how):
    deltas = deltas_of(base, models)
    kept = [d * mask for d, mask in zip(deltas, masks, strict=True)]
    if how == "density":
        return [k / share if share else k for k, share in zip(kept, density, strict=True)]
    return [rescaled(*one) for one in zip(kept, deltas, strict=True)] if how == "l1" else kept


@reference
def dare_linear(base, models, *, weight, density, normalize, lambda_, rescale, dare_rescale, masks):
    kept = drawn(base, models, masks, density, dare_rescale if rescale else None)
    return summed(base, kept, weight, normalize, lambda_)


@reference
def dare_ties(
    base, models, *, weight, density, normalize, lambda_, rescale, dare_rescale, vote, masks
):
    kept = drawn(base, models, masks, density, dare_rescale if rescale else None)
    return voted(base, kept, weight, normalize, lambda_, vote)


@reference
def della_linear(base, models, *, weight, density, epsilon, normalize, lambda_, rescale, masks):
    kept = drawn(base, models, masks, density, "l1" if rescale else None)
    return summed(base, kept, weight, normalize, lambda_)


@reference
def della(base, models, *, weight, density, epsilon, normalize, lambda_, rescale, vote, masks):
    kept = drawn(base, models, masks, density, "l1" if rescale else None)
    return voted(base, kept, weight, normalize, lambda_, vote)


@reference
def linear(base, models, *, weight, normalize, masks):
    total = sum(weight) if normalize else 1.0
    return sum(w * model for w, model in zip(weight, models, strict=True)) / total


@reference
def passthrough(base, models, *, scale, masks):
    return scale[0] * models[0]


def norm(array):
    return np.sqrt((array**2).sum())


def between(one, two, t, linear_from):
    """Slerp of two arrays as vectors; linear where `linear_from(cos)` says so, or one is zero."""
    if norm(one) == 0 or norm(two) == 0:
        return (1 - t) * one + t * two
    cos = float(np.clip((one * two).sum() / (norm(one) * norm(two)), -1, 1))
    if linear_from(cos):
        return (1 - t) * one + t * two
    angle = np.arccos(cos)
    return (np.sin((1 - t) * angle) * one + np.sin(t * angle) * two) / np.sin(angle)


@reference
def slerp(base, models, *, t, masks):
    return between(base, models[0], t, lambda cos: abs(cos) > 0.9995)


@reference
def nuslerp(base, models, *, weight, nuslerp_flatten, nuslerp_row_wise, masks):
    one, two = models if base is None else deltas_of(base, models)
    t = weight[1] / sum(weight)

    def of(x, y):
        return between(x, y, t, lambda cos: 1 - cos**2 <= 1e-14)

    if nuslerp_flatten or one.ndim == 0 or one.size == 0:
        merged = of(one, two)
    else:
        dim = 0 if nuslerp_row_wise else -1
        pairs = zip(np.moveaxis(one, dim, -1).reshape(-1, one.shape[dim]),
                    np.moveaxis(two, dim, -1).reshape(-1, one.shape[dim]), strict=True)  # fmt: skip
        rows = np.array([of(x, y) for x, y in pairs]).reshape(np.moveaxis(one, dim, -1).shape)
        merged = np.moveaxis(rows, -1, dim)
    return merged if base is None else base + merged


@reference
def multislerp(base, models, *, weight, normalize_weights, eps, masks):
    vectors = models if base is None else deltas_of(base, models)
    weight = [w / sum(weight) if normalize_weights else w for w in weight]
    units = [v / (norm(v) + eps) if norm(v) > 0 else v for v in vectors]
    mean = sum(w * u for w, u in zip(weight, units, strict=True))
    if norm(mean) <= 1e-6 * sum(map(abs, weight)):
        merged = np.zeros_like(vectors[0])
    else:
        m = mean / norm(mean)
        tangent = sum(w * (u - (u * m).sum() * m) for w, u in zip(weight, units, strict=True))
        angle = norm(tangent) + eps
        turn = np.sin(angle) / angle if angle > 0 else 1.0
        length = sum(w * norm(v) for w, v in zip(weight, vectors, strict=True))
        merged = (m * np.cos(angle) + tangent * turn) * length
    return merged if base is None else base + merged


@reference
def karcher(base, models, *, max_iter, tol, masks):
    count = len(models)
    units = [x / norm(x) if norm(x) > 0 else x for x in models]
    mean = sum(units) / count
    if norm(mean) <= 1e-7:
        mean = next((u for u in units if norm(u) > 0), units[0])
    m = mean / norm(mean) if norm(mean) > 0 else mean
    for _ in range(max_iter):
        step = np.zeros_like(m)
        for u in units:
            cos = float(np.clip((u * m).sum(), -1, 1))
            if norm(u) > 0 and cos > -1 + 1e-12:
                angle = np.arccos(cos)
                pull = angle / np.sin(angle) if np.sin(angle) > 1e-12 else 1.0
                step += pull * (u - cos * m) / count
        if norm(step) < tol:
            break
        m = np.cos(norm(step)) * m + np.sin(norm(step)) * step / norm(step)
    return m * sum(norm(x) for x in models) / count


@reference
def model_stock(base, models, *, filter_wise, masks):
    count, deltas = len(models), deltas_of(base, models)

    def interpolated(parts):
        cosines = [
            (parts[i] * parts[j]).sum() / (norm(parts[i]) * norm(parts[j]))
            if norm(parts[i]) > 0 and norm(parts[j]) > 0
            else 0.0
            for i in range(count)
            for j in range(i)
        ]
        c = sum(cosines) / len(cosines)
        under = 1 + (count - 1) * c
        return (count * c / under if under > 1e-12 else 0.0) * sum(parts) / count

    if not filter_wise or base.ndim == 0 or base.size == 0:
        return base + interpolated(deltas)
    rows = [delta.reshape(-1, base.shape[-1]) for delta in deltas]
    found = [interpolated([row[i] for row in rows]) for i in range(len(rows[0]))]
    return base + np.array(found).reshape(base.shape)


@reference
def sce(base, models, *, select_topk, masks):
    deltas = deltas_of(base, models)
    if select_topk < 1:
        pairs = [(a - b) ** 2 for a in deltas for b in deltas]
        variance = sum(pairs)  # times 2N², which leaves equal ones equal
        places = by_magnitude(variance)[: int(select_topk * (variance > 0).sum())]
        deltas = [only(delta, places) for delta in deltas]
    energy = [(delta**2).sum() for delta in deltas]
    weight = [e / sum(energy) if sum(energy) > 0 else 1 / len(energy) for e in energy]
    return voted(base, deltas, weight, True, 1.0, "unweighted", least=1e-6)


def threshold(deltas, epsilon, relative):
    if not relative or not deltas[0].size:
        return epsilon
    return epsilon * np.sqrt(np.mean(np.square(deltas)))


@reference
def ram(base, models, *, epsilon, relative, masks):
    deltas = deltas_of(base, models)
    active = [np.abs(d) > threshold(deltas, epsilon, relative) for d in deltas]
    total = sum(d * a for d, a in zip(deltas, active, strict=True))
    return base + total / np.maximum(1, sum(a.astype(int) for a in active))


@reference
def ramplus_tl(base, models, *, epsilon, r, alpha, relative, masks):
    deltas = deltas_of(base, models)
    active = [np.abs(d) > threshold(deltas, epsilon, relative) for d in deltas]
    count = sum(a.astype(int) for a in active)
    total = np.zeros_like(base)
    for delta, here in zip(deltas, active, strict=True):
        unique, shared = (here & (count == 1)).sum(), (here & (count > 1)).sum()
        grown = 1 + r * np.clip(shared / unique, 0, alpha) if unique else 1.0
        total = total + delta * here * np.where(count == 1, grown, 1.0)
    return base + total / np.maximum(1, count)


@reference
def nearswap(base, models, *, t, relative, masks):
    (delta,) = deltas_of(base, models)
    if relative:
        size = np.abs(delta)
        limit = threshold([delta], t, True)
        share = np.minimum(1.0, limit / np.where(size > 0, size, 1.0))
    else:
        share = np.clip(t / np.maximum(np.abs(delta), 1e-6), 0, 1)
    return base + share * delta


@reference
def arcee_fusion(base, models, *, masks):
    (other,) = models
    if not base.size:
        return base

    def softmax(x):
        grown = np.exp(x - x.max(-1, keepdims=True))
        return grown / grown.sum(-1, keepdims=True)

    x, b = np.atleast_1d(other), np.atleast_1d(base)
    p, q = softmax(x), softmax(b)
    importance = np.abs(x - b) * np.maximum((p * np.log(p / q)).sum(-1, keepdims=True), 0)
    low, high = (np.quantile(importance, q, method="lower") for q in (0.25, 0.75))
    takes = importance >= np.median(importance) + 1.5 * (high - low)
    return np.where(takes, x, b).reshape(base.shape)
