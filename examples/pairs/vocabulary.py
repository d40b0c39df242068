"""The vocabulary that all three models share: byte-level pair merges, and four files around it.

Refuses to know models; the digest of these files is what makes a draft and a target a pair.
"""

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END, USER, ASSISTANT = "<|end|>", "<|user|>", "<|assistant|>"
END_ID = 0
VOCABULARY_TOKENS = 1024
CONTEXT_TOKENS = 1024
CHAT_SHARE = 0.25  # of the documents are told as one exchange, so that the chat template is familiar

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|end|>"
    "{% else %}<|user|>{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train_vocabulary(texts: Iterable[str]) -> Tokenizer:
    """Byte-level pair merges learnt from ``texts``; any text can be encoded, since every byte is a token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_TOKENS,
        special_tokens=[END, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def write_vocabulary(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and its companions in the Hugging Face layout."""
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "pad_token": END,
            "additional_special_tokens": [USER, ASSISTANT],
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONTEXT_TOKENS,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    _write(folder / "special_tokens_map.json", {"eos_token": END, "pad_token": END})
    _write(folder / "generation_config.json", {"eos_token_id": END_ID, "pad_token_id": END_ID})


def encode_stream(documents: Iterable[str], tokenizer: Tokenizer, *, seed: int) -> list[int]:
    """All documents shuffled into one run of tokens, each closed by the end token, some of them told as a chat."""
    chance = random.Random(seed)
    shuffled = list(documents)
    chance.shuffle(shuffled)
    return [token for text in shuffled for token in tokenizer.encode(_told(text, chance)).ids]


def _told(text: str, chance: random.Random) -> str:
    opening, _, rest = text.partition("\n")
    if rest and chance.random() < CHAT_SHARE:
        return f"{USER}{opening}{ASSISTANT}{rest}{END}"
    return f"{text}{END}"


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
