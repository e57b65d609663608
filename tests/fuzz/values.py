"""Values that readers trip over, and the words that lead deep into them."""

import random

# As JSON text, since some of them no JSON writer writes.
NUMBERS = (
    "0", "1", "-1", "2", "7", "255", "65536", "2147483648", "9007199254740993",
    "9223372036854775807", "9223372036854775808", "18446744073709551616", str(2**60), "-0", "0.5",
    "-1.5", "1e308", "1e400", "-1e400", "NaN", "Infinity", "-Infinity", "1" + "0" * 400,
    "1" + "0" * 4299, "1" + "0" * 5000, "1e-320",
)  # fmt: skip
OTHERS = (
    "null", "true", "false", "[]", "{}", '""', '"x"', "[[]]", '{"":{}}', "[null]", "[true,1]",
    "[0,0]", "[-1,3]", "[1e3,2]", '[1,"2"]', '{"a":1}', "[0,18446744073709551616]",
    "[4611686018427387904,4611686018427387904]", "[0,4611686018427387904,4611686018427387904]",
)  # fmt: skip
PATHS = (
    "../outside/model.safetensors", "../../outside/model.safetensors", "/etc/passwd",
    "./model.safetensors", "a/../../outside/model.safetensors", "model.safetensors/", ".", "..",
    "", "model.safetensors\0", "..\\outside\\model.safetensors", "//etc/passwd", "~/x.safetensors",
    "file:///etc/passwd", "C:\\x.safetensors", "x" * 300 + ".safetensors",
    "d/" * 2100 + "x.safetensors", "../outside", "/", "/dev/zero", "/dev/stdin", "org/name@main",
)  # fmt: skip
TEXTS = (
    "\n", "\r\n", "\x1b[2J\x1b]0;x\x07", "\x7f", "\u202e\u2066", "\u0000", "\ufeff", "é\u0301",
    "😀", "\u2028", "[red]x[/red]", "%s%n{0}", "a" * 2000, "a" * 100_000, " ", ".", "..", "....",
    "1" * 5000, "९", "__metadata__", "weight", "experts", "LORA", "F32", "BF16", "F4", "C64",
)  # fmt: skip
REGEXES = (
    "(a+)+$", "(.*)*x", "(.*.*)*=", "(x|x)*y", "(?:.|.)*!", "(" * 200 + ")" * 200, "a{99999}",
    "((a{99}){99}){99}", "((?:){999}){999}", "a?" * 40 + "a" * 40, ".*" * 50 + "!", "(?=a)b",
    r"(a)\1", "(?i)x", "[", "[^]", "[z-a]", "[[:alpha:]]", "\\", "*", "a**", "x{2,1}", "|", "()",
    "^$", "(?P<n>a)(?P<n>b)", r"\d+", "|".join(f"m{i}" for i in range(3000)), "([a-z]+.?)*_",
    "(?:(?:.*.*)*(?:.*.*)*)*!",
)  # fmt: skip
NAMES = (
    "model.layers.0.mlp.experts.7.up_proj.weight", "model.layers.0.mlp.experts.0.w1.weight",
    "model.layers.0.mlp.experts.00.w1.weight", "model.layers.0.mlp.experts.1.gate_proj.weight",
    f"model.layers.0.mlp.experts.{10**8}.down_proj.weight",
    f"model.layers.0.mlp.experts.{'9' * 900}.w2.weight",
    f"model.layers.{'9' * 4500}.self_attn.q_proj.weight", "model.layers.९.mlp.up_proj.weight",
    "model.layers.0.mlp.gate_up_proj", "model.layers.0.mlp.experts.gate_up_proj",
    "model.layers.0.mlp.experts.gate_up_proj_bias", "experts.w1.weight", "lm_head.weight",
    "embed_out.weight", "model.embed_tokens.weight", "transformer.wte.weight", "model.norm.weight",
    "language_model.model.norm.weight", "language_model.norm.weight", "model.", ".weight", "weight",
    "a.qweight", "a_scales", "a_blocks", "a.weight_scale", "x.y.z", "model.model.model.weight",
    "vision_tower.vision_model.x", "transformer.h.0.attn.c_attn.weight", "word_embeddings.weight",
)  # fmt: skip
KEYS = (
    "base_model.model.lm_head.lora_A.weight", "base_model.model.lm_head.lora_B.weight",
    "base_model.model.lm_head.weight", "lora_A.weight", ".lora_A.weight",
    "base_model.model.model.embed_tokens.lora_embedding_A",
    "base_model.model.model.embed_tokens.lora_embedding_B",
    "base_model.model.model.embed_tokens.weight",
    "base_model.model.model.embed_tokens.base_layer.weight", "x.base_layer.weight",
    "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta",
    "base_model.model.lm_head.token_adapter.trainable_tokens_delta",
    "base_model.model.model.layers.0.mlp.experts.base_layer.base_layer.lora_A.weight",
    "base_model.model.model.layers.0.mlp.experts.lora_A.weight",
    "base_model.model.model.layers.0.mlp.experts.0.w1.lora_A.weight",
    "base_model.model.model.layers.0.self_attn.q_proj.weight",
    "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight",
    "model.layers.0.self_attn.q_proj.lora_A.weight", "q_proj.lora_A.weight", "q_proj.lora_B.weight",
    "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector", "weight",
    "base_model.model.model.norm.lora_velora_embed", "base_model.model.",
)  # fmt: skip
FIELDS = (
    "metadata", "weight_map", "__metadata__", "dtype", "shape", "data_offsets", "model_type",
    "text_config", "vision_config", "tie_word_embeddings", "quantization_config",
    "compression_config", "quant_method", "peft_type", "r", "lora_alpha", "alpha_pattern",
    "rank_pattern", "use_dora", "use_rslora", "bias", "target_parameters", "target_modules",
    "modules_to_save", "trainable_token_indices", "base_model_name_or_path", "revision",
    "init_lora_weights", "layer_replication", "format", "base", "output", "targets", "tensors",
    "other_dtypes", "config", "name", "rank", "lm_head", "embed_tokens", "",
)  # fmt: skip
MODEL_TYPES = (
    "llama", "gpt2", "gpt_neox", "mixtral", "phimoe", "granitemoe", "gpt_oss", "gemma3", "bloom",
)  # fmt: skip
TARGETS = ("experts.gate_up_proj", "experts.down_proj", "weight", "q_proj.weight", "gate.weight")
DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "U8", "BOOL", "F8_E4M3", "F4", "C64", "U16")


def text(rng: random.Random) -> str:
    """A string from one of the lists."""
    lists = (PATHS, TEXTS, REGEXES, NAMES, KEYS, FIELDS, MODEL_TYPES, TARGETS, DTYPES)
    return rng.choice(rng.choice(lists))


def name(rng: random.Random) -> str:
    """What a tensor might be called."""
    chosen = rng.choice(rng.choice((NAMES, NAMES, KEYS, KEYS, TEXTS)))
    return chosen if rng.random() < 0.9 else chosen + rng.choice(TEXTS)
