"""What travels beside the weights: configs, tokenizer, chat template, processor, remote code."""

import re
from pathlib import Path

_TRAVELS = re.compile(
    r"config\.json|generation_config\.json|configuration\.json"
    r"|tokenizer.*\.(json|model)|vocab\.(json|txt)|merges\.txt|special_tokens_map\.json"
    r"|added_tokens\.json|spiece\.model|sentencepiece.*\.model|tekken\.json|.*\.tiktoken"
    r"|chat_template\.(json|jinja)|(pre|video_pre|image_)?processor_config\.json"
    r"|preprocessor_config\.json|(configuration|modeling|tokenization|processing|image_processing"
    r"|feature_extraction|generation)_\w+\.py"
    r"|LICENSE.*|NOTICE.*|USE_POLICY.*"
)
_WEIGHTS = re.compile(r".*\.safetensors(\.index\.json)?|(adapter_config|core|rledit)\.json")


def is_side_file(name: str) -> bool:
    """Whether a file of a checkpoint folder is passed on to what is made from it."""
    return _TRAVELS.fullmatch(name) is not None


def side_files(folder: Path) -> tuple[list[Path], list[str]]:
    """The side files of a checkpoint folder, sorted, and the names of what is left behind
    (weights aside): optimizer states, logs, dotfiles, anything the allowlist does not name."""
    from mergekit_rl.io.folder import check_link

    travels, skipped = [], []
    for path in sorted(folder.iterdir()):
        if path.is_file() and is_side_file(path.name):
            check_link(folder, path)
            travels.append(path)
        elif not _WEIGHTS.fullmatch(path.name):
            skipped.append(path.name + ("/" if path.is_dir() else ""))
    return travels, skipped
