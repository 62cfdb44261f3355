#!/usr/bin/env python3
"""Makes a small Llama and, beside it, two LoRA adapters; seeded, so everybody gets the same.

    model.py FOLDER [--layers N] [--hidden N] [--kv-heads N] [--positions N] [--noise X] [--eagle]

Its answers are sharp: a block in the wrong place changes tokens and logprobs. --noise: every weight is moved by about
that share, for a draft model that often, not always, guesses what the other one says. --eagle: a head of EAGLE's kind
beside it, of one layer; it guesses badly.
"""
import argparse
import json
import pathlib

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM


def make_model(folder, layers, hidden, kv_heads, positions, noise):
    torch.manual_seed(1234)
    config = LlamaConfig(vocab_size=1024, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
                         num_attention_heads=hidden // 32, num_key_value_heads=kv_heads, head_dim=32,
                         max_position_embeddings=positions, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
                         torch_dtype="float32")
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "proj" in name or "lm_head" in name:
                p.normal_(0, 0.12)
            elif "embed" in name:
                p.normal_(0, 1.0)
        for p in model.parameters() if noise else ():
            p.mul_(1 + noise * torch.randn_like(p))
    model.save_pretrained(folder)
    return model


def make_eagle(folder, model):
    """Takes the model's first layer (EAGLE's has no norm in front of it) and its table of tokens; what joins a token with
    the state of the one before is random."""
    folder.mkdir(parents=True, exist_ok=True)
    hidden = model.config.hidden_size
    tensors = {name.removeprefix("model."): p.contiguous() for name, p in model.state_dict().items()
               if name.startswith(("model.layers.0.", "model.embed_tokens.")) and "input_layernorm" not in name}
    tensors["fc.weight"] = torch.randn(hidden, 2 * hidden, generator=torch.Generator().manual_seed(3)) * 0.05
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**model.config.to_dict(), "num_hidden_layers": 1,
                                                    "architectures": ["LlamaForCausalLM"]}))


def make_adapter(folder, seed, layers, hidden):
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for i in range(layers):
        for name, width in (("q_proj", hidden), ("v_proj", 64)):
            at = f"base_model.model.model.layers.{i}.self_attn.{name}"
            tensors[f"{at}.lora_A.weight"] = torch.randn(8, hidden, generator=generator) * 0.05
            tensors[f"{at}.lora_B.weight"] = torch.randn(width, 8, generator=generator) * 0.05
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"], "bias": "none",
        "task_type": "CAUSAL_LM", "base_model_name_or_path": "", "lora_dropout": 0.0}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--positions", type=int, default=4096)
    parser.add_argument("--noise", type=float, default=0)
    parser.add_argument("--eagle", action="store_true")
    args = parser.parse_args()
    model = make_model(args.folder / "model", args.layers, args.hidden, args.kv_heads, args.positions,
                       args.noise)
    if args.eagle:
        make_eagle(args.folder / "eagle", model)
    for seed in (1, 2):
        make_adapter(args.folder / f"lora{seed}", seed, args.layers, args.hidden)


if __name__ == "__main__":
    main()
