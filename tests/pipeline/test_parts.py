"""One output by several runs: the bytes of one run, whatever the order, kills included."""

import itertools

import pytest
import torch
from pairs import contents, make_pair, save
from safetensors.torch import load_file

from mergekit_rl import EditError, sar
from mergekit_rl.pipeline.parts import Part, join_events, part_events
from mergekit_rl.pipeline.run import drain

OPTIONS = {
    "core": {"rank": 2},
    "model": {"save": "model", "rest": "rl"},
    "sweep": {"save": "both", "rank": [1, "energy:0.5"]},
}


def part(base, rl, out, index, count=3, **options):
    return drain(part_events(base, rl, out, Part(index, count), **options), None)


def join(base, rl, out, **options):
    return drain(join_events(base, rl, out, **options), None)


@pytest.mark.parametrize("kind", OPTIONS)
def test_parts_joined_in_any_order_are_the_bytes_of_one_run(tmp_path, kind):
    options = OPTIONS[kind]
    base, rl = make_pair(tmp_path)
    sar(base, rl, tmp_path / "one", **options)
    for order in itertools.permutations(range(3)):
        done = [part(base, rl, tmp_path / "out", index, **options) for index in order]
        assert sum(one.tensors for one in done) == done[0].of == 20
        join(base, rl, tmp_path / "out", force=True, **options)
        assert contents(tmp_path / "one") == contents(tmp_path / "out")
        assert sorted(p.name for p in tmp_path.iterdir()) == ["base", "one", "out", "rl"]


def test_a_part_that_was_killed_is_resumed_or_redone(tmp_path):
    base, rl = make_pair(tmp_path)
    sar(base, rl, tmp_path / "one")
    for again in ("resume", "force"):
        for index in (0, 2):
            part(base, rl, tmp_path / "out", index)
        events = part_events(base, rl, tmp_path / "out", "1/3", workers=1)
        for _ in range(3):
            next(events)
        events.close()
        with pytest.raises(EditError, match="are not complete or of two divisions: there are 0/3"):
            join(base, rl, tmp_path / "out", force=True)
        part(base, rl, tmp_path / "out", 1, **{again: True})
        join(base, rl, tmp_path / "out", force=True)
        assert contents(tmp_path / "one") == contents(tmp_path / "out")


def test_a_part_of_another_plan_is_refused_by_name(tmp_path):
    base, rl = make_pair(tmp_path)
    for index in (0, 1):
        part(base, rl, tmp_path / "out", index)
    part(base, rl, tmp_path / "out", 2, rank=3)
    with pytest.raises(EditError) as caught:
        join(base, rl, tmp_path / "out")
    assert str(caught.value) == (
        f"{tmp_path / 'out.part-2-of-3'} was made with other inputs or options: repeat those, or "
        "compute it again with --force"
    )
    assert not (tmp_path / "out").exists()


def test_a_part_of_a_changed_input_is_refused(tmp_path):
    base, rl = make_pair(tmp_path)
    for index in range(3):
        part(base, rl, tmp_path / "out", index)
    tensors = load_file(rl / "model.safetensors")
    save(rl, {name: t + torch.ones(()) for name, t in tensors.items()})
    with pytest.raises(EditError, match="was made with other inputs or options"):
        join(base, rl, tmp_path / "out")


def test_copies_of_the_inputs_on_another_machine_agree(tmp_path):
    base, rl = make_pair(tmp_path)
    copies = [save(tmp_path / "there" / f.name, load_file(f / "model.safetensors"))
              for f in (base, rl)]  # fmt: skip
    for source, copy in zip((base, rl), copies, strict=True):
        for path in source.iterdir():
            (copy / path.name).write_bytes(path.read_bytes())
    sar(base, rl, tmp_path / "one")
    part(base, rl, tmp_path / "out", 0, 2)
    part(*copies, tmp_path / "out", 1, 2)
    join(base, rl, tmp_path / "out")
    assert contents(tmp_path / "one") == contents(tmp_path / "out")


def test_more_parts_than_tensors_leave_some_empty(tmp_path):
    base, rl = make_pair(tmp_path, layers=1)
    sar(base, rl, tmp_path / "one")
    for index in range(13):
        part(base, rl, tmp_path / "out", index, 13)
    join(base, rl, tmp_path / "out")
    assert contents(tmp_path / "one") == contents(tmp_path / "out")


def test_joining_without_parts_is_refused(tmp_path):
    base, rl = make_pair(tmp_path)
    with pytest.raises(EditError, match=r"there is no .*out\.part-…: compute the parts first"):
        join(base, rl, tmp_path / "out")


@pytest.mark.parametrize("text", ["3/3", "x", "1", "-1/3", "1/0", "0/0", "1/2/3", ""])
def test_a_part_that_is_none_is_refused(text):
    with pytest.raises(EditError, match=r"--part is .*, expected 0/3, 1/3 or 2/3 for thirds"):
        Part.parse(text)
