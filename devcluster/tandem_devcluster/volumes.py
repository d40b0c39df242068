"""A pod's volumes as folders of the host, and how they are bound into its containers.

It knows files and which references make them; it mounts nothing itself. A folder made of references is replaced as a
kubelet does it: a new version is written beside, and one rename of the link `..data` switches all its files at once.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tandem_devcluster.environment import Sources, read_field
from tandem_devcluster.errors import PodConfigError
from tandem_devcluster.process import VolumeBinding
from tandem_devcluster.references import References
from tandem_devcluster.workload import Container, Object

_DEFAULT_MODE = 0o644
_LIVE_KINDS = frozenset({"configMap", "secret", "projected", "downwardAPI"})


@dataclass(frozen=True, slots=True)
class FileContent:
    data: bytes
    mode: int


Files = Mapping[str, FileContent]


class Volumes:
    """All volumes of one pod, under one folder."""

    def __init__(self, folder: Path, references: References) -> None:
        self._folder = folder
        self._references = references
        self._written: dict[str, Files] = {}

    async def prepare(self, volumes: tuple[Object, ...], sources: Sources) -> None:
        """Make every volume, or bring those made of references up to date.

        Raises:
            PodConfigError: a volume is of a kind that is not offered, or refers to something absent.
        """
        for volume in volumes:
            kind = next(key for key in volume if key != "name")
            if kind == "emptyDir":
                self.path(volume["name"]).mkdir(parents=True, exist_ok=True)
                self.path(volume["name"]).chmod(0o777)
            elif kind in _LIVE_KINDS:
                self._write(volume["name"], await self._files(kind, volume[kind], sources))
            elif kind != "hostPath":
                raise PodConfigError(f"volume {volume['name']}: {kind} is not offered here")

    def path(self, name: str) -> Path:
        return self._folder / name

    def bindings(self, container: Container, volumes: tuple[Object, ...]) -> list[VolumeBinding]:
        """Where the container's mounts come from. Volumes made of references cannot be written."""
        by_name = {volume["name"]: volume for volume in volumes}
        bindings = []
        for mount in container.mounts:
            volume = by_name[mount.volume]
            base = Path(volume["hostPath"]["path"]) if "hostPath" in volume else self.path(mount.volume)
            source = base / mount.sub_path if mount.sub_path else base
            if mount.sub_path and not source.exists():
                source.mkdir(parents=True)
            bindings.append(
                VolumeBinding(source.resolve(), mount.path, mount.read_only or not _LIVE_KINDS.isdisjoint(volume))
            )
        return bindings

    async def _files(self, kind: str, source: Object, sources: Sources) -> Files:
        mode = source.get("defaultMode", _DEFAULT_MODE)
        match kind:
            case "configMap":
                return _choose(await self._references.config_map(source["name"]), source, source["name"], mode)
            case "secret":
                name = source["secretName"] if "secretName" in source else source["name"]  # a volume's, or projected
                return _choose(await self._references.secret(name), source, name, mode)
            case "downwardAPI":
                return {
                    item["path"]: FileContent(_field(item, sources).encode(), item.get("mode", mode))
                    for item in source.get("items", ())
                }
            case "projected":
                return await self._projected(source, sources, mode)
            case _:
                raise PodConfigError(f"projected source {kind} is not offered here")

    async def _projected(self, source: Object, sources: Sources, mode: int) -> Files:
        files: dict[str, FileContent] = {}
        for part in source["sources"]:
            kind = next(iter(part))
            if kind == "serviceAccountToken":
                token = part[kind]
                text = await self._references.token(token.get("audience", ""), token.get("expirationSeconds"))
                files[token["path"]] = FileContent(text.encode(), mode)
            else:
                files.update(await self._files(kind, {"defaultMode": mode, **part[kind]}, sources))
        return files

    def _write(self, name: str, files: Files) -> None:
        if self._written.get(name) == files:
            return
        folder = self.path(name)
        folder.mkdir(parents=True, exist_ok=True)
        version = folder / f"..{len(list(folder.glob('..[0-9]*')))}-{os.urandom(4).hex()}"
        for path, content in files.items():
            target = version / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.data)
            target.chmod(content.mode)
        version.mkdir(exist_ok=True)
        _switch(folder, version, {Path(path).parts[0] for path in files})
        self._written[name] = files


def _switch(folder: Path, version: Path, entries: set[str]) -> None:
    """Point `..data` at the version, link the entries through it, and drop what the last version had."""
    fresh = folder / "..fresh"
    fresh.symlink_to(version.name)
    fresh.replace(folder / "..data")
    for entry in folder.iterdir():
        if entry.name.startswith("..") and entry.is_dir() and not entry.is_symlink() and entry != version:
            shutil.rmtree(entry)
        elif not entry.name.startswith("..") and entry.name not in entries:
            entry.unlink()
    for name in entries:
        link = folder / name
        if not link.is_symlink():
            link.symlink_to(f"..data/{name}")


def _choose(data: Mapping[str, bytes] | None, source: Object, name: str, mode: int) -> Files:
    """The chosen keys of a config map or secret as files; all of them when none are chosen."""
    optional = source.get("optional", False)
    if data is None:
        if optional:
            return {}
        raise PodConfigError(f"config map or secret {name!r} of a volume does not exist")
    items = source.get("items") or [{"key": key, "path": key} for key in data]
    missing = [item["key"] for item in items if item["key"] not in data]
    if missing and not optional:
        raise PodConfigError(f"config map or secret {name!r} of a volume has no key {missing[0]!r}")
    return {
        item["path"]: FileContent(data[item["key"]], item.get("mode", mode)) for item in items if item["key"] in data
    }


def _field(item: Object, sources: Sources) -> str:
    if "fieldRef" not in item:
        raise PodConfigError(f"downwardAPI item {item['path']!r}: only fieldRef is offered here")
    return read_field(item["fieldRef"]["fieldPath"], sources)
