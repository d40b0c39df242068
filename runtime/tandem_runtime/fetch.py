"""Knows how a model folder comes to a pod before its engine starts, and how the pod's last words tell what it is.

Refuses to know engines and weights; the environment is read elsewhere.

`file:///path` is checked where it stands and nothing is copied. `hf://organisation/name` is downloaded at one commit:
the revision is resolved first, so that files of two commits never mix. What is there already is not downloaded again.

The result is one JSON object, on stdout and, in a pod, as the container's termination message:
`{"digest": ..., "tokenizer": ..., "commit": ..., "path": ..., "taughtBy": ...}` (`commit` is null for a folder,
`taughtBy` for whatever has no manifest that names a target) or `{"error": ...}`.
"""

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.model_folder import ADAPTER_FILES, Digests, digests_of, taught_by, tokenizer_digest_of

logger = logging.getLogger(__name__)

_LAST_WORDS_CHARACTERS: Final = 2000
"""Kubernetes keeps 4096 bytes of a termination message; an error in this many characters fits in UTF-8 escapes too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to fetch. `revision` is for hf:// only; `digest`, where given, must be the model's.

    `tokenizer_only`: what a gateway needs, without weights; then there is no digest to compare.
    """

    uri: str
    into: Path
    revision: str | None = None
    digest: str | None = None
    tokenizer_only: bool = False


@dataclass(frozen=True, slots=True)
class Hub:
    """Which hub, and as whom. None: the public one, as nobody."""

    endpoint: str | None = None
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Fetched:
    digest: str | None
    tokenizer: str
    commit: str | None
    path: str
    taught_by: str | None = None

    def told(self) -> dict[str, Any]:
        """As the contract has it."""
        names = {"digest": self.digest, "tokenizer": self.tokenizer, "commit": self.commit, "path": self.path}
        return {**names, "taughtBy": self.taught_by}


def run_fetch(order: Order, hub: Hub, *, last_words: Path | None) -> int:
    """Fetch and tell; the exit code is 0, or 1 with the error told in the same way."""
    try:
        told, code = fetch(order, hub).told(), 0
    except (ModelRefused, OSError) as error:
        told, code = {"error": str(error)[:_LAST_WORDS_CHARACTERS]}, 1
        logger.error("fetch failed uri=%s error=%s", order.uri, error)
    message = json.dumps(told)
    print(message)
    if last_words is not None:
        last_words.write_text(message, encoding="utf-8")
    return code


def fetch(order: Order, hub: Hub) -> Fetched:
    """Raises ModelRefused naming the URI, the file or the digest, and what to do."""
    folder, commit = _place(order, hub)
    if order.tokenizer_only:
        return Fetched(digest=None, tokenizer=tokenizer_digest_of(folder), commit=commit, path=str(folder))
    logger.info("hashing path=%s", folder)
    digests = digests_of(folder)
    _check_digest(order, digests)
    logger.info("fetched path=%s digest=%s", folder, digests.model)
    return Fetched(
        digest=digests.model,
        tokenizer=digests.tokenizer,
        commit=commit,
        path=str(folder),
        taught_by=taught_by(folder),
    )


def fetch_adapter(repository: str, revision: str | None, into: Path, *, hub: Hub) -> None:
    """The two files of an adapter, from a repository at one commit. Raises ModelRefused naming the repository."""
    from tandem_runtime.hub import download  # noqa: PLC0415  # as below

    download(repository, revision, files=ADAPTER_FILES, into=into, endpoint=hub.endpoint, token=hub.token)


def _place(order: Order, hub: Hub) -> tuple[Path, str | None]:
    """Where the model folder is now, and its commit."""
    parts = urlsplit(order.uri)
    match parts.scheme:
        case "file":
            return _local_folder(order, parts.netloc, parts.path), None
        case "hf":
            return _download(order, hub, f"{parts.netloc}{parts.path}".strip("/"))
        case _:
            raise ModelRefused(f"uri {order.uri!r}: write file:///path or hf://organisation/name")


def _local_folder(order: Order, host: str, path: str) -> Path:
    if host not in ("", "localhost") or not path.startswith("/"):
        raise ModelRefused(f"uri {order.uri!r}: a file URI has three slashes and a full path, file:///path")
    if order.revision is not None:
        raise ModelRefused(f"revision {order.revision!r}: a file URI has no revisions; leave it out")
    return Path(unquote(path))


def _check_digest(order: Order, digests: Digests) -> None:
    if order.digest is not None and order.digest != digests.model:
        raise ModelRefused(
            f"digest of {order.uri} is {digests.model}, not {order.digest} as asked; correct the digest, or find out "
            "who changed the files"
        )


def _download(order: Order, hub: Hub, repository: str) -> tuple[Path, str]:
    from tandem_runtime.hub import MODEL_FILES, TOKENIZER_FILES, download  # noqa: PLC0415  # the hub's library takes a second to load

    files = TOKENIZER_FILES if order.tokenizer_only else MODEL_FILES
    commit = download(repository, order.revision, files=files, into=order.into, endpoint=hub.endpoint, token=hub.token)
    return order.into, commit
