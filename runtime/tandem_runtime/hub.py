"""Knows how a repository on a Hugging Face hub becomes a model folder at one commit.

Refuses to know the environment: endpoint and token are arguments, and the token is shown nowhere.
"""

import errno
import logging
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError: of whichever HTTP client the hub uses
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import disable_progress_bars

from tandem_runtime.domain.errors import ModelRefused

logger = logging.getLogger(__name__)

MODEL_FILES: Final = ("*.safetensors", "*.json", "*.jinja", "LICENSE*")
"""No pickles, no code, no weights of other frameworks."""

TOKENIZER_FILES: Final = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)

_UNWANTED_FILES: Final = "*/*"
"""Subfolders hold the same weights for other libraries; a model folder is flat."""

_PROGRESS_SECONDS: Final = 10.0
_ANSWER_SECONDS: Final = 30.0


def download(
    repository: str, revision: str | None, *, files: Sequence[str], into: Path, endpoint: str | None, token: str | None
) -> str:
    """The commit whose `files` (patterns) `into` holds now.

    Raises ModelRefused naming repository, revision or space, and what to do.
    """
    with _translated(repository, revision):
        info = HfApi(endpoint=endpoint, token=token or False).model_info(
            repository, revision=revision, files_metadata=True, timeout=_ANSWER_SECONDS
        )
        commit = str(info.sha)
        size = sum(each.size or 0 for each in info.siblings or () if _is_wanted(each.rfilename, files))
        into.mkdir(parents=True, exist_ok=True)
        _check_space(into, size)
        with _progress(into, size):
            snapshot_download(
                repository,
                revision=commit,
                local_dir=into,
                allow_patterns=list(files),
                ignore_patterns=_UNWANTED_FILES,
                endpoint=endpoint,
                token=token or False,
            )
    return commit


def _is_wanted(name: str, files: Sequence[str]) -> bool:
    return not fnmatch(name, _UNWANTED_FILES) and any(fnmatch(name, pattern) for pattern in files)


def _check_space(into: Path, size_bytes: int) -> None:
    """What is there of an earlier attempt counts as space."""
    free_bytes = shutil.disk_usage(into).free + _held_bytes(into)
    if size_bytes > free_bytes:
        raise ModelRefused(f"{into} has room for {free_bytes} bytes, the model takes {size_bytes}; give it more space")


def _held_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@contextmanager
def _progress(into: Path, size_bytes: int) -> Iterator[None]:
    """A line in the log now and then: a bar is for terminals."""
    disable_progress_bars()
    logger.info("downloading bytes=%d into=%s", size_bytes, into)
    done = threading.Event()

    def tell() -> None:
        while not done.wait(_PROGRESS_SECONDS):
            logger.info("downloading bytes=%d of=%d", _held_bytes(into), size_bytes)

    teller = threading.Thread(target=tell, name="progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


@contextmanager
def _translated(repository: str, revision: str | None) -> Iterator[None]:
    where = f"hf://{repository}"
    try:
        yield
    except HFValidationError as error:
        raise ModelRefused(f"{where} is no repository name; write hf://organisation/name") from error
    except GatedRepoError as error:
        raise ModelRefused(f"{where} is gated; accept its terms on the hub and give a token in HF_TOKEN") from error
    except RevisionNotFoundError as error:
        raise ModelRefused(f"{where} has no revision {revision!r}; name a branch, tag or commit of it") from error
    except RepositoryNotFoundError as error:
        raise ModelRefused(
            f"{where} is not there or not open to us; check the name, and HF_TOKEN if it is private"
        ) from error
    except HfHubHTTPError as error:
        raise ModelRefused(f"{where}: the hub answered {error.response.status_code}; try again later") from error
    except HTTPError as error:
        raise ModelRefused(
            f"{where}: the hub cannot be reached ({type(error).__name__}); check the network and HF_ENDPOINT"
        ) from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise ModelRefused(f"{where}: no space left; give the folder more space") from error
        raise
