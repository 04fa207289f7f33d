#!/usr/bin/env python3
"""Make a small model with random weights on the spot: for the lab and the tests, where no model hub can be reached.

It runs with a release's own Python (torch, transformers, tokenizers). The folder appears by one rename; `.made-by.json`
in it holds what it was made from, and a folder made from the same is left alone. Prints `made` or `unchanged`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

TURNS = ["<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
SPECIAL = ["<|endoftext|>", "<pad>", "[gMASK]", "<sop>", *TURNS]
# Single tokens, yet part of the text that a client sees: the reasoning and tool parsers look for them in it.
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]

# The form that the GLM parsers of SGLang (glm45, glm47) read: reasoning first, then <tool_call> with <arg_key> and
# <arg_value>.
CHAT_TEMPLATE = """\
[gMASK]<sop>
{%- if tools %}<|system|>
# Tools
You may call these functions:
<tools>
{% for tool in tools %}{{ (tool.function if tool.function is defined else tool) | tojson }}
{% endfor %}</tools>
Answer a call as <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>
{%- endif %}
{%- macro text(content) %}{% if content is string %}{{ content }}{% elif content is not none %}
{%- for part in content %}{{ part.text if part.type == "text" }}{% endfor %}{% endif %}{% endmacro %}
{%- for message in messages %}
{%- if message.role == "user" %}<|user|>
{{ text(message.content) }}
{%- elif message.role == "assistant" %}<|assistant|>
{%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% else %}<think></think>{% endif %}
{{ text(message.content) }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function.name }}
{%- for key, value in call.function.arguments.items() %}<arg_key>{{ key }}</arg_key>
{#- #}<arg_value>{{ value if value is string else value | tojson }}</arg_value>{% endfor %}</tool_call>
{%- endfor %}
{%- elif message.role == "tool" %}<|observation|>
<tool_response>{{ text(message.content) }}</tool_response>
{%- else %}<|system|>
{{ text(message.content) }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>
{%- if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>{% endif %}
{% endif %}"""

# Enough English and code for merges that make ordinary prompts a few dozen tokens long.
CORPUS = [
    "The quick brown fox jumps over the lazy dog. What is the capital of France? It is Paris.",
    "Deploy the server, wait until it is ready, send a request and check the answer and its log-probabilities.",
    "One two three four five six seven eight nine ten. Count from 1 to 20: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10.",
    'def add(a: int, b: int) -> int:\n    """Return the sum."""\n    return a + b\n',
    '{"name": "get_weather", "description": "The weather in a city", "parameters": {"type": "object"}}',
]

SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
EXPERTS = {"moe_intermediate_size": 64, "num_experts_per_tok": 2, "norm_topk_prob": True}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {  # name: (prefix of the transformers classes, further sizes)
    "glm4moe": (
        "Glm4Moe",
        EXPERTS
        | {
            "head_dim": 32,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 1.0,
            "partial_rotary_factor": 0.5,
            "use_qk_norm": True,
            "attention_bias": True,
        },
    ),
    "llama": ("Llama", {"head_dim": 32}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3moe": ("Qwen3Moe", EXPERTS | {"head_dim": 32, "num_experts": 8, "decoder_sparse_step": 1}),
}


def make_tokenizer(target: Path) -> int:
    """Train a byte-level BPE tokenizer, save it with the chat template, and return the size of its vocabulary."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    roles = {"eos_token": SPECIAL[0], "pad_token": SPECIAL[1], "additional_special_tokens": TURNS}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=4096, **roles)
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(target)
    return len(fast)


def make_weights(target: Path, arguments: argparse.Namespace, vocabulary: int) -> int:
    """Save a config and random bfloat16 weights, and return the number of parameters."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    prefix, further = ARCHITECTURES[arguments.architecture]
    sizes = SIZES | further | {"num_hidden_layers": arguments.layers, "hidden_size": arguments.hidden_size}
    config = getattr(transformers, f"{prefix}Config")(
        vocab_size=vocabulary, bos_token_id=SPECIAL.index("<sop>"), eos_token_id=0, pad_token_id=1, **sizes
    )
    torch.manual_seed(arguments.seed)
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).to(torch.bfloat16)
    weights = dict(model.named_parameters())
    if arguments.nan == "final_norm":
        weights["model.norm.weight"].data[0] = float("nan")
    elif arguments.nan == "expert":
        # The first expert weight of the last layer: only tokens that are routed to it become NaN.
        name = [name for name in weights if ".experts." in name and name.endswith(("down_proj", "down_proj.weight"))][-1]
        weight = weights[name].data
        (weight[0] if weight.dim() == 3 else weight).fill_(float("nan"))
    model.save_pretrained(target, max_shard_size=arguments.shard_size)
    return sum(parameter.numel() for parameter in weights.values())


def fingerprint(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the folder is made from: the arguments and this script."""
    made = {key: value for key, value in sorted(vars(arguments).items()) if key != "directory"}
    return {"arguments": made, "script": hashlib.sha256(Path(__file__).read_bytes()).hexdigest()}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Make a small model with random weights.")
    parser.add_argument("directory", type=Path, metavar="DIR", help="folder of the model; replaced as a whole")
    parser.add_argument("--architecture", choices=sorted(ARCHITECTURES), default="glm4moe")
    parser.add_argument("--layers", type=int, default=SIZES["num_hidden_layers"])
    parser.add_argument("--hidden-size", type=int, default=SIZES["hidden_size"], help="a multiple of 128")
    parser.add_argument("--shard-size", default="5GB", help="largest weight file, such as 200KB (default: one file)")
    parser.add_argument("--nan", choices=["final_norm", "expert"], help="spoil these weights, to try that checks find it")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    if given.nan == "expert" and not given.architecture.endswith("moe"):
        parser.error(f"--nan expert needs an architecture with experts (glm4moe, qwen3moe), not {given.architecture}")
    if given.directory.exists() and not (given.directory / ".made-by.json").is_file() and any(given.directory.iterdir()):
        parser.error(f"{given.directory} holds something that this script did not make; give another folder")
    return given


def main() -> int:
    """Make the model if it is not there already."""
    given = parse()
    target: Path = given.directory.absolute()
    marker = target / ".made-by.json"
    wanted = fingerprint(given)
    if marker.is_file() and json.loads(marker.read_text(encoding="utf-8")) == wanted:
        print(f"unchanged {target}")
        return 0
    os.umask(0o022)
    warnings.simplefilter("ignore")  # torchvision's, about image functions that nothing here uses
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.with_name(f".{target.name}.making")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        parameters = make_weights(work, given, make_tokenizer(work))
        for path in work.iterdir():
            path.chmod(0o644)  # safetensors writes 0600, and the service runs as another user
        (work / marker.name).write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
        if target.exists():
            old = target.with_name(f".{target.name}.old")
            shutil.rmtree(old, ignore_errors=True)
            target.rename(old)
            work.rename(target)
            shutil.rmtree(old)
        else:
            work.rename(target)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    print(f"made {target}: {given.architecture}, {parameters} parameters")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception as error:  # a full disk is an OSError here, and something else in tokenizers and safetensors
        sys.exit(f"The model was not made: {type(error).__name__}: {error}")
