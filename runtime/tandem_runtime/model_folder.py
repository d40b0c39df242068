"""Knows what makes a folder a model folder, and the digests by which models and tokenizers are told apart.

Refuses to know weights and how they are loaded: it reads bytes.

A digest is `sha256:` and the SHA-256 of the lines `<sha256 of file>  <file name>\\n`, sorted by file name. The model's
goes over `*.safetensors`, `config.json` and `generation_config.json`, the tokenizer's over `tokenizer.json` and
`tokenizer_config.json`; files that are not there have no line. So `sha256sum` and `sort` can check both by hand:

    cd FOLDER && sha256sum *.safetensors config.json generation_config.json | LC_ALL=C sort -k2 | sha256sum
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tandem_runtime.domain.errors import ModelRefused

_MODEL_FILES = ("*.safetensors", "config.json", "generation_config.json")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_NEEDED = ("config.json", "tokenizer.json")


@dataclass(frozen=True, slots=True)
class Digests:
    model: str
    tokenizer: str


def check_model_folder(folder: Path) -> None:
    """Raises ModelRefused naming what is missing."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ModelRefused(f"{folder} {what}; name a folder with config.json, tokenizer.json and *.safetensors")
    missing = [name for name in _NEEDED if not (folder / name).is_file()]
    if not any(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise ModelRefused(f"{folder} is no model folder: it lacks {', '.join(missing)}")


def digests_of(folder: Path) -> Digests:
    """Reads every byte of the folder's model files: about a second per gigabyte. Raises ModelRefused."""
    check_model_folder(folder)
    try:
        return Digests(model=_digest(folder, _MODEL_FILES), tokenizer=_digest(folder, _TOKENIZER_FILES))
    except OSError as error:
        raise ModelRefused(f"{error.filename} cannot be read: {error.strerror}") from error


def tokenizer_digest_of(folder: Path) -> str:
    """Of a folder that may hold nothing but a tokenizer. Raises ModelRefused."""
    if not (folder / "tokenizer.json").is_file():
        raise ModelRefused(f"{folder} has no tokenizer.json; name the folder that holds the model's")
    return _digest(folder, _TOKENIZER_FILES)


def _digest(folder: Path, patterns: Iterable[str]) -> str:
    files = sorted((file for pattern in patterns for file in folder.glob(pattern)), key=lambda file: file.name)
    lines = "".join(f"{_file_digest(file)}  {file.name}\n" for file in files)
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def _file_digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
