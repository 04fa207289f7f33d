"""Write a small random GLM-MoE-DSA checkpoint that SGLang can serve, and a broken one: make_model.py GOOD BROKEN.

Heads, LoRA ranks and indexer have GLM-5's own sizes, since its sparse-attention kernels are built for these; depth,
width, experts and vocabulary are small. The broken one's final norm is NaN, and with it every logit.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 1024
SPECIAL = ["<|endoftext|>", "<|user|>", "<|assistant|>", "<|system|>"]
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
TEXT = ["Deploy the server, wait until it is ready, ask it something and read the answer. "] * 20
# In the published config.json, but not written by transformers' class; SGLang stops without them.
PUBLISHED = {"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "num_nextn_predict_layers": 0}


def tokenizer(folder: Path) -> None:
    """A byte-level tokenizer, so that any text can be asked."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet)
    inner.train_from_iterator(TEXT, trainer)
    end = SPECIAL[0]
    outer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=end, eos_token=end, pad_token=end)
    outer.chat_template = TEMPLATE
    outer.save_pretrained(folder)


def checkpoint(folder: Path, model: GlmMoeDsaForCausalLM) -> None:
    """Everything that a server reads."""
    tokenizer(folder)
    model.save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **PUBLISHED}, indent=1), encoding="utf-8")
    for path in (folder, *folder.iterdir()):  # the weights come out readable for root alone
        path.chmod(0o755 if path.is_dir() else 0o644)


def weights() -> GlmMoeDsaForCausalLM:
    """Random weights, the same on every machine."""
    sizes = {"hidden_size": 1024, "intermediate_size": 2048, "moe_intermediate_size": 512, "num_hidden_layers": 4}
    experts = {"n_routed_experts": 16, "num_experts": 16, "num_experts_per_tok": 4, "first_k_dense_replace": 1}
    attention = {"num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 512, "index_n_heads": 32}
    tokens = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    config = GlmMoeDsaConfig(**sizes, **experts, **attention, **tokens, max_position_embeddings=32768)
    torch.manual_seed(0)
    return GlmMoeDsaForCausalLM(config).to(torch.bfloat16)


def main() -> None:
    """Write both."""
    good, broken = map(Path, sys.argv[1:])
    model = weights()
    checkpoint(good, model)
    model.model.norm.weight.data.fill_(float("nan"))
    checkpoint(broken, model)


if __name__ == "__main__":
    main()
