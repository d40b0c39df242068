"""Knows the adapters of a SpeculativeDeployment: their fields, and which lists of them a target can load.

Refuses to know hashes, pods, and how an adapter gets into one.

The API server refuses all of this first; it is said here too for an operator that meets an older definition.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from tandem_operator.domain.errors import SpecError

MOST = 16

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB = re.compile(r"hf://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_FILE = "file://"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterModel:
    """Weights: `hf://owner/name` pinned by the commit `revision`, or `file:///path` in the target pods."""

    uri: str
    revision: str | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """LoRA on the target, which requests name as `<servedModelName>:<name>`."""

    name: str
    model: AdapterModel


def refuse(adapters: Sequence[Adapter], folder: str | None) -> None:
    """Raises SpecError for a list that no target loads; `folder` is spec.target.adaptersFolder."""
    names = [each.name for each in adapters]
    if len(names) > MOST:
        raise SpecError("spec.adapters", f"a list of {len(names)}", f"give at most {MOST}")
    for index, adapter in enumerate(adapters):
        path = f"spec.adapters[{index}]"
        if not _NAME.fullmatch(adapter.name):
            words = "give 1 to 63 letters, digits, dots, underscores and hyphens, a letter or digit first"
            raise SpecError(f"{path}.name", adapter.name, words)
        if adapter.name in names[:index]:
            raise SpecError(f"{path}.name", adapter.name, "another adapter has this name; give each one of its own")
        _refuse_model(adapter.model, f"{path}.model", folder)


def _refuse_model(model: AdapterModel, path: str, folder: str | None) -> None:
    if model.uri.startswith(_FILE):
        return _refuse_folder(model, path, folder)
    if not _HUB.fullmatch(model.uri):
        words = "use hf://owner/name for a Hugging Face repository, or file:///path for a folder inside the target pods"
        raise SpecError(f"{path}.uri", model.uri, words)
    if not _COMMIT.fullmatch(model.revision or ""):
        raise SpecError(f"{path}.revision", model.revision, "give the 40-digit commit from the repository's history")
    return None


def _refuse_folder(model: AdapterModel, path: str, folder: str | None) -> None:
    place = PurePosixPath(model.uri.removeprefix(_FILE))
    if folder is None:
        words = "target pods load from no folder: name one that lies above it in spec.target.adaptersFolder"
        raise SpecError(f"{path}.uri", model.uri, words)
    if ".." in place.parts or PurePosixPath(folder) not in place.parents:
        words = f"it does not lie below {folder}, which is spec.target.adaptersFolder"
        raise SpecError(f"{path}.uri", model.uri, words)
    if model.revision:
        words = "a file:// adapter has no revision; remove it, and use `digest` to pin the content"
        raise SpecError(f"{path}.revision", model.revision, words)
