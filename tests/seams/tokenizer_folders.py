"""Small tokenizer folders, made by the tokenizers library itself."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

TEXT = ["the quick brown fox jumps over the lazy dog", "a fox is quick and the dog is not", "äöü 😀 naïve"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_level_folder(folder: Path, *, settings: Mapping[str, Any] | None = None) -> Path:
    """A byte-level BPE tokenizer with <s> before every text, </s> as the end, and a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return _write(folder, tokenizer, settings, {"eos_token_id": 1})


def letters_folder(folder: Path, letters: str = "abcdefg") -> Path:
    """One token per letter, for models whose vocabulary is that small."""
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    return _write(folder, tokenizer, {"chat_template": "{{ messages[0].content }}"}, {})


def _write(
    folder: Path, tokenizer: Tokenizer, settings: Mapping[str, Any] | None, generation: Mapping[str, Any]
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    usual = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps({**usual, **(settings or {})}), encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return folder
