"""What travels with the weights, and what stays."""

import pytest

from mergekit_rl import EditError
from mergekit_rl.io.sidefiles import is_side_file, side_files

TRAVELS = [
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer.model",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "chat_template.jinja", "preprocessor_config.json", "processor_config.json",
    "modeling_custom.py", "configuration_custom.py", "tokenization_custom.py", "tekken.json",
    "qwen.tiktoken", "LICENSE", "LICENSE.txt", "NOTICE",
]  # fmt: skip
STAYS = [
    "optimizer.pt", "scheduler.pt", "rng_state_0.pth", "training_args.bin", "trainer_state.json",
    "events.out.tfevents.1", ".gitattributes", ".env", "train.log", "pytorch_model.bin",
    "README.md", "setup.py", "run.sh", "wandb.json", "config.json.bak", "xmodeling_a.py",
    "evil_modeling.py",
]  # fmt: skip
WEIGHTS = [
    "model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors",
    "adapter_config.json", "core.json", "rledit.json",
]  # fmt: skip


@pytest.mark.parametrize("name", TRAVELS)
def test_configs_tokenizers_and_code_travel(name):
    assert is_side_file(name)


@pytest.mark.parametrize("name", STAYS + WEIGHTS)
def test_everything_else_stays(name):
    assert not is_side_file(name)


def test_what_stays_is_listed_except_weights(tmp_path):
    for name in TRAVELS + STAYS + WEIGHTS:
        (tmp_path / name).write_text("")
    (tmp_path / "runs").mkdir()
    (tmp_path / "config.json.d").mkdir()
    travels, skipped = side_files(tmp_path)
    assert travels == sorted(tmp_path / name for name in TRAVELS)
    assert sorted(skipped) == sorted([*STAYS, "runs/", "config.json.d/"])


def test_a_folder_named_like_a_side_file_stays(tmp_path):
    (tmp_path / "tokenizer.json").mkdir()
    assert side_files(tmp_path) == ([], ["tokenizer.json/"])


def test_a_side_file_that_is_a_link_out_of_the_folder_is_refused(tmp_path):
    (tmp_path / "secret").write_text("key")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").symlink_to(tmp_path / "secret")
    with pytest.raises(EditError) as caught:
        side_files(folder)
    assert str(caught.value) == (
        f"{folder}/tokenizer.json is a link to {tmp_path}/secret, outside its folder: copy the "
        "file in its place"
    )
