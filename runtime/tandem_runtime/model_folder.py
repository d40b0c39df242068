"""Knows what makes a folder a model folder, and the digests by which models and tokenizers are told apart.

Refuses to know weights, how they are loaded, and what a file's fields mean: it reads bytes, texts and JSON objects.

A digest is `sha256:` and the SHA-256 of the lines `<sha256 of file>  <file name>\\n`, sorted by file name. The model's
goes over `*.safetensors`, `config.json` and `generation_config.json`, the tokenizer's over `tokenizer.json`,
`tokenizer_config.json` and `chat_template.jinja`, an adapter's over `adapter_model.safetensors` and
`adapter_config.json`; files that are not there have no line. So `sha256sum` and `sort` can check them by hand:

    cd FOLDER && sha256sum *.safetensors config.json generation_config.json | LC_ALL=C sort -k2 | sha256sum
"""

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem_runtime.domain.errors import ModelRefused

_log = logging.getLogger(__name__)

LARGE_BYTES = 1 << 30
"""Files from here on take a second or more, which the log should account for."""

_MODEL_FILES = ("*.safetensors", "config.json", "generation_config.json")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_config.json")
MANIFEST = "tandem.json"
"""Beside a draft: `target`, the digest of the target that it was taught by."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_OTHER_WEIGHTS = ("*.bin", "*.gguf", "*.pth")
_NEEDED = ("config.json", "tokenizer.json")


@dataclass(frozen=True, slots=True)
class Digests:
    model: str
    tokenizer: str


def check_model_folder(folder: Path) -> None:
    """Raises ModelRefused naming what is missing."""
    _check(folder, (*_NEEDED, "*.safetensors"))


def digests_of(folder: Path) -> Digests:
    """Reads every byte of the folder's model files: about a second per gigabyte. Raises ModelRefused."""
    check_model_folder(folder)
    return Digests(model=_digest(folder, _MODEL_FILES), tokenizer=_digest(folder, _TOKENIZER_FILES))


def tokenizer_digest_of(folder: Path) -> str:
    """Of a folder that may hold nothing but a tokenizer. Raises ModelRefused."""
    _check(folder, ("tokenizer.json",))
    return _digest(folder, _TOKENIZER_FILES)


def taught_by(folder: Path) -> str | None:
    """The digest of the target that a draft's manifest names; None without a manifest, and for one that is of no use,
    which the log tells: nothing that serves hangs on it."""
    file = folder / MANIFEST
    if not file.exists():
        return None
    try:
        told = read_object(file).get("target")
    except ModelRefused as refused:
        _log.warning("the manifest is not heeded: %s", refused)
        return None
    if not isinstance(told, str) or not _DIGEST.fullmatch(told):
        _log.warning("the manifest is not heeded: %s: target is %.80r; give the digest sha256:...", file, told)
        return None
    return told


def adapter_digest_of(folder: Path) -> str:
    """Of a folder that holds an adapter as PEFT writes it. Raises ModelRefused."""
    _check(folder, ADAPTER_FILES, kind="adapter")
    return _digest(folder, ADAPTER_FILES)


def read_text(file: Path) -> str:
    """Raises ModelRefused naming the file."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError as missing:
        raise ModelRefused(f"{file}: this file is missing") from missing
    except OSError as error:
        raise ModelRefused(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelRefused(f"{file} is no text: {error}") from error


def read_object(file: Path) -> dict[str, Any]:
    """A JSON object. Raises ModelRefused naming the file."""
    text = read_text(file)
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelRefused(f"{file} is no readable JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ModelRefused(f"{file} holds {type(fields).__name__}; give a JSON object")
    return fields


def _check(folder: Path, needed: Sequence[str], *, kind: str = "model") -> None:
    try:
        found = folder.is_dir()
    except OSError as error:
        raise ModelRefused(f"{folder} cannot be read: {error.strerror}") from error
    if not found:
        what = "is a file" if folder.exists() else "does not exist"
        raise ModelRefused(f"{folder} {what}; name a folder with {', '.join(needed)}")
    missing = [pattern for pattern in needed if not any(map(Path.is_file, folder.glob(pattern)))]
    if missing:
        others = sorted(file.name for pattern in _OTHER_WEIGHTS for file in folder.glob(pattern))
        hint = f"; {others[0]} is not read: save the model again as safetensors" if others else ""
        raise ModelRefused(f"{folder} is no {kind} folder: it lacks {', '.join(missing)}{hint}")


def _digest(folder: Path, patterns: Iterable[str]) -> str:
    files = sorted((file for pattern in patterns for file in folder.glob(pattern)), key=lambda file: file.name)
    try:
        lines = "".join(f"{_file_digest(file)}  {file.name}\n" for file in files)
    except OSError as error:
        raise ModelRefused(f"{error.filename} cannot be read: {error.strerror}") from error
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def _file_digest(file: Path) -> str:
    if (size := file.stat().st_size) >= LARGE_BYTES:
        _log.info("taking the digest of %s, %.1f GB", file, size / 1e9)
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
