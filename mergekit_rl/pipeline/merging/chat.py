"""The chat template of a merged model."""

import json
from collections import Counter
from pathlib import Path

from mergekit_rl.errors import EditError
from mergekit_rl.io.chat_template import CONFIG, LEGACY, TEMPLATE, read_chat_template
from mergekit_rl.io.jsonfile import read_object
from mergekit_rl.pipeline.merging.tokens import Vocabularies
from mergekit_rl.recipe.yaml_reader import shown
from mergekit_rl.registry import suggestion

_CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
_LLAMA3 = """\
{{- bos_token -}}
{%- for message in messages -%}
{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
{{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif -%}
"""
_MISTRAL = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}{{ ' ' + message['content'] + eos_token }}
{%- else -%}{{ '[INST] ' + message['content'] + ' [/INST]' }}{%- endif -%}
{%- endfor -%}
"""
_GEMMA = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""
_ALPACA = """\
{%- for message in messages -%}
{%- if message['role'] == 'system' -%}{{ message['content'] + '\\n\\n' }}
{%- elif message['role'] == 'user' -%}{{ '### Instruction:\\n' + message['content'] + '\\n\\n' }}
{%- else -%}{{ '### Response:\\n' + message['content'] + eos_token + '\\n\\n' }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '### Response:\\n' }}{%- endif -%}
"""
BUILT_IN = {
    "alpaca": _ALPACA, "chatml": _CHATML, "gemma": _GEMMA, "llama3": _LLAMA3, "mistral": _MISTRAL,
}  # fmt: skip


def chat_template(asked: str | None, vocabularies: Vocabularies) -> str | None:
    """The text of the template a recipe asks for: `auto` is the one that most models have, of
    several equally common the first model's; None where nothing is asked for, or no model has one.

    Raises:
        EditError: neither a name nor a Jinja template.
    """
    if asked is None:
        return None
    if asked == "auto":
        found = [read_chat_template(folder) for folder in vocabularies.folders]
        counts = Counter(text for text in found if text is not None)
        return max(counts, key=counts.__getitem__) if counts else None
    if asked in BUILT_IN:
        return BUILT_IN[asked]
    if "{{" not in asked and "{%" not in asked:
        names = ["auto", *BUILT_IN]
        hint = suggestion(asked, names) or f": it has {', '.join(names)}"
        raise EditError(
            f"chat_template: there is no template {shown(asked)}{hint}; or write Jinja text"
        )
    import jinja2

    try:
        jinja2.Environment(extensions=["jinja2.ext.loopcontrols"]).parse(asked)
    except jinja2.TemplateSyntaxError as error:
        # The tag that transformers adds to Jinja itself.
        if "generation" not in str(error):
            raise EditError(
                f"chat_template is no Jinja template: line {error.lineno}: {error.message}"
            ) from None
    return asked


def chat_files(text: str, config: Path | bytes | None) -> dict[str, bytes | None]:
    """{name: content} of the files that tell a template; None for one that must not be there.

    Args:
        config: the tokenizer_config.json that would be written otherwise.
    """
    found: dict[str, bytes | None] = {TEMPLATE: text.encode(), LEGACY: None}
    if config is not None:
        content = json.loads(config) if isinstance(config, bytes) else read_object(config)
        if content.pop("chat_template", None) is not None:
            found[CONFIG] = (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
    return found
