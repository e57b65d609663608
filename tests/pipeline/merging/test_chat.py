"""The chat template of a merged model."""

import json

import pytest
from merge_models import family
from transformers import PreTrainedTokenizerFast

from mergekit_rl import EditError, merge
from mergekit_rl.pipeline.merging.chat import BUILT_IN

TALK = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return family(tmp_path_factory.mktemp("chat"))


def say(folder, text, legacy=False):
    if legacy:
        config = json.dumps({"chat_template": text, "eos_token": "</s>"})
        (folder / "tokenizer_config.json").write_text(config)
    else:
        (folder / "chat_template.jinja").write_text(text)


def merged(models, out, template):
    entries = [{"model": str(models[n]), "parameters": {"weight": 1}} for n in "abc"]
    recipe = {"merge_method": "linear", "models": entries, "base_model": str(models["base"])}
    return merge({**recipe, "chat_template": template}, out, force=True)


def test_auto_is_what_most_models_have_wherever_it_is_written(models, tmp_path):
    found = merged(models, tmp_path / "out", "auto")
    assert "chat_template: auto: no model has a chat template" in found.notes
    say(models["base"], "base {{ messages }}", legacy=True)
    say(models["a"], "most {{ messages }}")
    say(models["b"], "most {{ messages }}", legacy=True)
    merged(models, tmp_path / "out", "auto")
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "most {{ messages }}"
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert config == {"eos_token": "</s>"}  # one template, not two that disagree


def test_a_template_of_the_recipes_own_is_written_as_it_is(models, tmp_path):
    text = "{% for message in messages %}{{ message.content }}/{% endfor %}"
    merged(models, tmp_path / "out", text)
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == text


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_templates_render_a_talk_and_a_prompt(name, models, tmp_path):
    merged(models, tmp_path / "out", name)
    text = (tmp_path / "out" / "chat_template.jinja").read_text()
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({"a": 0}, unk_token="a")),
        bos_token="<s>", eos_token="</s>", chat_template=text,
    )  # fmt: skip
    whole = tokenizer.apply_chat_template(TALK, tokenize=False)
    asked = tokenizer.apply_chat_template(TALK[:1], tokenize=False, add_generation_prompt=True)
    assert "2 + 2?" in whole and "4" in whole.replace("2 + 2?", "")
    assert whole.startswith(asked.rstrip()[: len(asked) // 2])
    if name == "chatml":
        assert asked == "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n"
    if name == "llama3":
        start = "<|start_header_id|>{}<|end_header_id|>\n\n"
        assert asked == f"<s>{start.format('user')}2 + 2?<|eot_id|>{start.format('assistant')}"
    if name == "gemma":
        assert asked == "<s><start_of_turn>user\n2 + 2?<end_of_turn>\n<start_of_turn>model\n"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("chatlm", "chat_template: there is no template 'chatlm'; did you mean 'chatml'?"),
        ("{% for %}", "chat_template is no Jinja template: line 1: "),
    ],
)
def test_what_is_no_template_is_refused_before_a_weight_is_read(models, tmp_path, asked, message):
    with pytest.raises(EditError) as caught:
        merged(models, tmp_path / "out", asked)
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()
