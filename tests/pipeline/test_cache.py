"""Sweeps and inspections over what earlier ones kept: the same to the last bit, and not computed
again."""

import os

import pytest
import torch
from pairs import contents, llama, make_pair, save, updated

from mergekit_rl import EditError, sar
from mergekit_rl.io.cache import Cache
from mergekit_rl.pipeline.inspect import inspect
from mergekit_rl.pipeline.kept import Content, decomposing
from mergekit_rl.pipeline.parts import join_events, part_events
from mergekit_rl.pipeline.run import drain
from mergekit_rl.spectral.randomness import keyed_generator
from mergekit_rl.spectral.svd import truncated_svd


def state(folder):
    """{entry: what changes when it is written anew}."""
    return {path.name: path.stat().st_ino for path in folder.iterdir()}


def kinds(folder):
    return {row["kind"]: row["entries"] for row in Cache(folder).listing().kinds}


def grown_old(folder):
    for path in folder.iterdir():
        os.utime(path, (1, 1))


def used(folder):
    """How many entries were read or written since they were `grown_old`."""
    return sum(path.stat().st_mtime > 1 for path in folder.iterdir())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rank": ["0.1", "energy:0.6", "full"], "save": "both"},
        {"base_rank": 5, "mask": "diagonal"},
        {"order": "project-first", "base_rank": 9},
        {"projection": "random", "norm_match": 2},
        {"svd": "exact"},
    ],
    ids=str,
)
@pytest.mark.parametrize("wide", [False, True])
def test_a_sweep_gives_the_same_bytes_cold_warm_and_without(tmp_path, cached, options, wide):
    shape = {"hidden": 160, "inner": 256, "layers": 1} if wide else {}
    base, rl = make_pair(tmp_path, **shape)  # the wide one is decomposed by Krylov, from a start
    options = {"rank": [1, 3]} | options
    sar(base, rl, tmp_path / "without", cache=False, **options)
    assert not cached.exists()
    sar(base, rl, tmp_path / "cold", **options)
    before = state(cached)
    assert kinds(cached)["decomposition"] == (7 if wide else 14)
    grown_old(cached)
    sar(base, rl, tmp_path / "warm", **options)
    assert state(cached) == before and used(cached) == len(before)
    expected = contents(tmp_path / "without")
    for name in ("cold", "warm"):
        found = contents(tmp_path / name)
        assert set(found) == set(expected)
        for file, data in found.items():
            assert data == expected[file] or file.endswith("core.json")
            if file.endswith("core.json"):
                assert lasting(data) == lasting(expected[file])


def lasting(data):
    """A core.json without what a clock or the system says."""
    import json

    found = json.loads(data)
    for key in [key for key in found["summary"] if key.startswith(("seconds", "peak"))]:
        del found["summary"][key]
    return found


def test_another_question_about_the_same_updates_decomposes_nothing_again(tmp_path, cached):
    base, rl = make_pair(tmp_path)
    sar(base, rl, tmp_path / "first", rank=[1, 3])
    before = state(cached)
    for number, options in enumerate(
        (
            {"base_rank": 4}, {"mask": "off-diagonal"}, {"projection": "none"}, {"scale": 0.5},
            {"dtype": "bfloat16", "save": "model"}, {"rank": [2, 3]}, {"workers": 3},
            {"order": "project-first"}, {"include": "mlp"},
        )
    ):  # fmt: skip
        sar(base, rl, tmp_path / str(number), **({"rank": [1, 3]} | options))
        assert state(cached) == before


def test_what_changes_a_decomposition_is_a_miss(tmp_path, cached):
    base, rl = make_pair(tmp_path)
    sar(base, rl, tmp_path / "first", rank=[1, 3])
    for number, options in enumerate(({"rank": [1, 4]}, {"seed": 1}, {"svd": "gram"}), 2):
        sar(base, rl, tmp_path / str(number), **({"rank": [1, 3]} | options))
        assert kinds(cached)["decomposition"] == 14 * number
    other = save(tmp_path / "other", updated(llama(), seed=9))
    sar(base, other, tmp_path / "last", rank=[1, 3])
    assert kinds(cached)["decomposition"] == 14 * 5


def test_one_rank_keeps_nothing_unless_asked(tmp_path, cached):
    base, rl = make_pair(tmp_path)
    sar(base, rl, tmp_path / "one", rank=3)
    assert not cached.exists()
    sar(base, rl, tmp_path / "asked", rank=3, cache=True)
    assert kinds(cached) == {"decomposition": 14}
    sar(base, rl, tmp_path / "again", rank=3, cache=True)
    for name in ("asked", "again"):
        ours, theirs = contents(tmp_path / name), contents(tmp_path / "one")
        assert ours["adapter_model.safetensors"] == theirs["adapter_model.safetensors"]


def test_a_resume_and_parts_need_not_say_the_same_of_the_cache(tmp_path, cached):
    base, rl = make_pair(tmp_path)
    options = {"rank": [1, 3]}
    sar(base, rl, tmp_path / "plain", cache=False, **options)

    def stop(event):
        if event.done == 5:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        sar(base, rl, tmp_path / "out", progress=stop, cache=True, **options)
    sar(base, rl, tmp_path / "out", resume=True, cache=False, **options)
    for index, cache in enumerate((True, False)):
        part = part_events(base, rl, tmp_path / "joined", f"{index}/2", cache=cache, **options)
        drain(part, None)
    drain(join_events(base, rl, tmp_path / "joined", **options), None)
    adapters = [
        contents(tmp_path / name)["rank-3/adapter_model.safetensors"]
        for name in ("plain", "out", "joined")
    ]
    assert adapters[0] == adapters[1] == adapters[2]


def test_damaged_entries_change_nothing(tmp_path, cached):
    base, rl = make_pair(tmp_path)
    sar(base, rl, tmp_path / "cold", rank=[1, 3])
    for number, path in enumerate(sorted(cached.iterdir())):
        data = bytearray(path.read_bytes())
        data[(number * 997) % len(data)] ^= 4
        path.write_bytes(bytes(data))
    sar(base, rl, tmp_path / "again", rank=[1, 3])
    for name in ("rank-1", "rank-3"):
        file = f"{name}/adapter_model.safetensors"
        assert contents(tmp_path / "again")[file] == contents(tmp_path / "cold")[file]


def test_a_cache_that_cannot_be_written_changes_nothing(tmp_path, cached, monkeypatch):
    base, rl = make_pair(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RLEDIT_CACHE", str(tmp_path / "file" / "below"))
    assert len(sar(base, rl, tmp_path / "out", rank=[1, 3])) == 2
    assert len(inspect(base, [rl]).rows) == 14


def test_a_wrong_variable_is_told_before_anything_is_read_and_only_where_it_matters(
    tmp_path, cached, monkeypatch
):
    base, rl = make_pair(tmp_path)
    monkeypatch.setenv("RLEDIT_CACHE_LIMIT", "lots")
    for run in (lambda: sar("no", "where", tmp_path / "x", rank=[1, 3]), lambda: inspect("no", [])):
        with pytest.raises(EditError, match="RLEDIT_CACHE_LIMIT is 'lots', expected a size"):
            run()
    sar(base, rl, tmp_path / "out", rank=3)
    inspect(base, [rl], cache=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(40, 30), (30, 40), (1, 9), (400, 320)])
def test_a_kept_decomposition_leaves_the_generator_where_computing_does(tmp_path, shape, dtype):
    a = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    cache = Cache(tmp_path, 10**8)
    k = min(5, *shape)
    found = []
    for decompose in (truncated_svd, decomposing(cache), decomposing(cache)):
        generator = keyed_generator(0, "a", 0)
        svd = decompose(a, k, method="auto", generator=generator)
        found.append((svd, generator.get_state()))
    for svd, after in found[1:]:
        assert torch.equal(after, found[0][1])
        for name in ("U", "S", "Vh"):
            assert torch.equal(getattr(svd, name), getattr(found[0][0], name))
        assert (svd.error, svd.method) == (found[0][0].error, found[0][0].method)


def test_content_is_dtype_shape_layout_and_bytes():
    a = torch.arange(6.0).reshape(2, 3)
    others = [a.double(), a.reshape(3, 2), a.T.contiguous().T, a + 1, -a]
    assert len({Content(one).digest for one in (a, *others)}) == 6
    assert Content(a).digest == Content(a.clone()).digest
    zero = torch.zeros(1)
    assert Content(zero).digest != Content(-zero).digest


def test_inspections_are_equal_cold_warm_and_without(tmp_path, cached):
    base, rl = make_pair(tmp_path)
    other = save(tmp_path / "other", updated(llama(), seed=8))
    without = inspect(base, [rl, other], cache=False)
    assert not cached.exists()
    cold = inspect(base, [rl, other])
    assert kinds(cached) == {"measures": 28, "collision": 14}
    before = state(cached)
    grown_old(cached)
    warm = inspect(base, [rl, other])
    assert state(cached) == before and used(cached) == len(before)
    assert repr(without) == repr(cold) == repr(warm)


def test_a_further_expert_leaves_what_is_known_of_the_others(tmp_path, cached):
    base, rl = make_pair(tmp_path)
    experts = [rl, *(save(tmp_path / f"e{n}", updated(llama(), seed=n)) for n in (8, 9))]
    inspect(base, experts[:2])
    before = state(cached)
    found = inspect(base, experts)
    assert before.items() <= state(cached).items()
    assert kinds(cached) == {"measures": 42, "collision": 42}
    assert repr(found) == repr(inspect(base, experts, cache=False))


def test_rows_hang_on_weights_and_settings_and_not_on_names_of_folders(tmp_path, cached):
    base, rl = make_pair(tmp_path)
    inspect(base, [rl], rank=2)
    before = state(cached)
    renamed = rl.rename(tmp_path / "renamed")
    assert {row["expert"] for row in inspect(base, [renamed], rank=2).rows} == {"renamed"}
    inspect(base, [renamed], rank=2, include="mlp", workers=3)
    assert state(cached) == before
    for number, options in enumerate(({"rank": 3}, {"rank": 2, "alpha": 0.2}), 2):
        inspect(base, [renamed], **options)
        assert kinds(cached) == {"measures": 14 * number}


def test_a_base_stored_in_another_dtype_is_measured_anew(tmp_path, cached):
    base, rl = make_pair(tmp_path, torch.bfloat16)
    inspect(base, [rl])
    wide = save(tmp_path / "wide", {name: t.float() for name, t in llama().items()})
    inspect(wide, [rl])
    assert kinds(cached) == {"measures": 28}
