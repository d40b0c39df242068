"""Fetching a model folder: from a path, and from a hub on a loopback port that speaks the few endpoints needed."""

import hashlib
import json
import logging
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from tandem_runtime import main, model_folder, settings
from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.fetch import Fetched, Hub, Order, fetch, fetch_adapter, run_fetch
from tandem_runtime.model_folder import Digests, digests_of

FILES = {
    "config.json": b'{"vocab_size": 7}',
    "generation_config.json": b"{}",
    "model-00001-of-00002.safetensors": b"weights one",
    "model-00002-of-00002.safetensors": b"weights two",
    "tokenizer.json": b'{"model": {}}',
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def digest_by_hand(*names: str) -> str:
    """As docs/contracts.md states it."""
    lines = "".join(f"{hashlib.sha256(FILES[name]).hexdigest()}  {name}\n" for name in sorted(names))
    return "sha256:" + hashlib.sha256(lines.encode()).hexdigest()


OF_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
MODEL = digest_by_hand(*(name for name in FILES if name not in OF_TOKENIZER))
TOKENIZER = digest_by_hand(*OF_TOKENIZER)
OTHER = "sha256:" + "0d" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    (folder / "README.md").write_text("Not part of the digest.")
    return folder


@dataclass
class LoopbackHub:
    """`organisation/name` at one commit; `organisation/gated` needs terms; all else is not there."""

    files: dict[str, bytes] = field(
        default_factory=lambda: {**FILES, "pytorch_model.bin": b"a pickle", "onnx/x.json": b"{}"}
    )
    sizes: dict[str, int] = field(default_factory=dict)
    tokens: set[str | None] = field(default_factory=set)
    downloaded: list[str] = field(default_factory=list)
    endpoint: str = ""

    def info(self) -> dict[str, object]:
        siblings = [
            {"rfilename": name, "size": self.sizes.get(name, len(content)), "blobId": hashlib.sha1(content).hexdigest()}
            for name, content in self.files.items()
        ]
        return {"id": "organisation/name", "modelId": "organisation/name", "sha": COMMIT, "siblings": siblings}

    def tree(self) -> list[dict[str, object]]:
        return [
            {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            for name, content in self.files.items()
        ]


class Answers(BaseHTTPRequestHandler):
    hub: ClassVar[LoopbackHub]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.hub.tokens.add(self.headers.get("Authorization"))
        path = self.path.partition("?")[0]
        match path.strip("/").split("/"):
            case ["api", "models", "organisation", "gated", *_]:
                self._refuse(403, "GatedRepo")
            case ["api", "models", "organisation", "name", "revision", ("main" | "v1") | _ as revision] if revision in (
                "main",
                "v1",
                COMMIT,
            ):
                self._send(json.dumps(self.hub.info()).encode())
            case ["api", "models", "organisation", "name"]:
                self._send(json.dumps(self.hub.info()).encode())
            case ["api", "models", "organisation", "name", "revision", _]:
                self._refuse(404, "RevisionNotFound")
            case ["api", "models", "organisation", "name", "tree", _]:
                self._send(json.dumps(self.hub.tree()).encode())
            case ["organisation", "name", "resolve", _, *name] if "/".join(name) in self.hub.files:
                self._send_file("/".join(name))
            case _:
                self._refuse(404, "RepoNotFound")

    def _send_file(self, name: str) -> None:
        content = self.hub.files[name]
        if self.command == "GET":
            self.hub.downloaded.append(name)
        self._send(content, {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'})

    def _send(self, body: bytes, headers: dict[str, str] | None = None, status: int = 200) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self._send(b"{}", {"X-Error-Code": code}, status)

    def log_message(self, *_: object) -> None:
        print("hub:", self.command, self.path)


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    state = LoopbackHub()
    handler = type("Bound", (Answers,), {"hub": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    state.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_folder_is_checked_where_it_stands(folder: Path) -> None:
    order = Order(uri=f"file://{folder}", into=folder.parent / "unused", digest=MODEL)
    assert fetch(order, Hub()) == Fetched(MODEL, TOKENIZER, None, str(folder))
    assert not order.into.exists()


def test_a_repository_is_downloaded_at_its_commit_without_pickles_and_subfolders(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    order = Order(uri="hf://organisation/name", revision="v1", into=tmp_path / "into", digest=MODEL)
    fetched = fetch(order, Hub(hub.endpoint, "hf_secret"))
    assert fetched == Fetched(MODEL, TOKENIZER, COMMIT, str(tmp_path / "into"))
    assert sorted(hub.downloaded) == sorted(FILES)
    assert hub.tokens == {"Bearer hf_secret"}


def test_a_second_fetch_downloads_nothing_again(hub: LoopbackHub, tmp_path: Path) -> None:
    order = Order(uri="hf://organisation/name", into=tmp_path / "into")
    first = fetch(order, Hub(hub.endpoint))
    assert hub.tokens == {None}
    hub.downloaded.clear()
    assert (fetch(order, Hub(hub.endpoint)), hub.downloaded) == (first, [])


def test_a_gateway_fetches_what_its_tokenizer_needs_and_no_weights(hub: LoopbackHub, tmp_path: Path) -> None:
    order = Order(uri="hf://organisation/name", into=tmp_path / "into", tokenizer_only=True)
    assert fetch(order, Hub(hub.endpoint)) == Fetched(None, TOKENIZER, COMMIT, str(tmp_path / "into"))
    assert sorted(hub.downloaded) == sorted(name for name in FILES if not name.endswith(".safetensors"))


def test_of_an_adapter_two_files_are_downloaded(hub: LoopbackHub, tmp_path: Path) -> None:
    files = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}
    hub.files = {**FILES, **files, "adapter_model.bin": b"a pickle"}
    fetch_adapter("organisation/name", COMMIT, tmp_path, hub=Hub(hub.endpoint))
    assert sorted(hub.downloaded) == sorted(files)
    assert {file.name: file.read_bytes() for file in tmp_path.glob("adapter_*")} == files
    with pytest.raises(ModelRefused, match="has no revision 'gone'"):
        fetch_adapter("organisation/name", "gone", tmp_path, hub=Hub(hub.endpoint))


def test_a_folder_with_a_tokenizer_alone_is_enough_for_a_gateway(folder: Path) -> None:
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    order = Order(uri=f"file://{folder}", into=folder, tokenizer_only=True)
    assert fetch(order, Hub()) == Fetched(None, TOKENIZER, None, str(folder))


BAD_ORDERS = [
    ("s3://bucket/model", None, "write file:///path or hf://organisation/name"),
    ("/plain/path", None, "write file:///path or hf://organisation/name"),
    ("file://host/path", None, "a file URI has three slashes"),
    ("file:///nowhere", None, "/nowhere does not exist"),
    ("file:///nowhere", "v1", "a file URI has no revisions"),
    ("hf://organisation/name", "v9", "hf://organisation/name has no revision 'v9'"),
    ("hf://organisation/absent", None, "hf://organisation/absent is not there or not open to us"),
    ("hf://organisation/gated", None, "is gated; accept its terms"),
    ("hf://a/b/c", None, "hf://a/b/c is no repository name"),
]


@pytest.mark.parametrize(("uri", "revision", "says"), BAD_ORDERS)
def test_what_cannot_be_fetched_is_refused_with_the_reason(
    uri: str, revision: str | None, says: str, hub: LoopbackHub, tmp_path: Path
) -> None:
    with pytest.raises(ModelRefused) as caught:
        fetch(Order(uri=uri, revision=revision, into=tmp_path / "into"), Hub(hub.endpoint))
    assert says in str(caught.value)


def test_a_hub_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match=r"cannot be reached .* check the network and HF_ENDPOINT"):
        fetch(Order(uri="hf://organisation/name", into=tmp_path), Hub("http://127.0.0.1:1"))


def test_a_model_larger_than_the_free_space_is_refused_before_the_download(hub: LoopbackHub, tmp_path: Path) -> None:
    free_bytes = shutil.disk_usage(tmp_path).free
    hub.sizes["model-00001-of-00002.safetensors"] = 2 * free_bytes
    with pytest.raises(ModelRefused, match="give it more space"):
        fetch(Order(uri="hf://organisation/name", into=tmp_path / "into"), Hub(hub.endpoint))
    assert hub.downloaded == []


def test_the_last_words_of_a_good_fetch_are_its_result(folder: Path, tmp_path: Path) -> None:
    told = tmp_path / "termination"
    assert run_fetch(Order(uri=f"file://{folder}", into=tmp_path), Hub(), last_words=told) == 0
    assert json.loads(told.read_text()) == {
        "digest": MODEL,
        "tokenizer": TOKENIZER,
        "commit": None,
        "path": str(folder),
        "taughtBy": None,
    }


def test_a_draft_says_by_which_target_it_was_taught(folder: Path, tmp_path: Path) -> None:
    before = digests_of(folder)
    (folder / "tandem.json").write_text(json.dumps({"target": OTHER, "tokenizer": TOKENIZER}))
    told = tmp_path / "termination"
    assert run_fetch(Order(uri=f"file://{folder}", into=tmp_path), Hub(), last_words=told) == 0
    assert json.loads(told.read_text())["taughtBy"] == OTHER
    assert digests_of(folder) == before


@pytest.mark.parametrize("manifest", ["{", "[]", '{"target": 7}', '{"target": "sha256:12"}', "{}"])
def test_a_manifest_of_no_use_stands_in_nobodys_way_and_the_log_says_why(
    folder: Path, manifest: str, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "tandem.json").write_text(manifest)
    fetched = fetch(Order(uri=f"file://{folder}", into=folder), Hub())
    assert (fetched.digest, fetched.taught_by) == (MODEL, None)
    assert "tandem.json" in caplog.text


def test_a_wrong_digest_is_exit_1_and_the_last_words_say_both(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = tmp_path / "termination"
    monkeypatch.setenv("TERMINATION_MESSAGE_PATH", str(told))
    asked = "sha256:" + "0" * 64
    assert main.run(["fetch", "--uri", f"file://{folder}", "--digest", asked, "--into", str(tmp_path)]) == 1
    words = json.loads(told.read_text())
    assert list(words) == ["error"]
    assert f"is {MODEL}, not {asked} as asked" in words["error"]
    assert json.loads(capsys.readouterr().out) == words


def test_the_digest_moves_with_names_and_bytes_of_model_files_only(folder: Path) -> None:
    before = digests_of(folder)
    (folder / "README.md").write_text("Other words.")
    assert digests_of(folder) == before
    (folder / "tokenizer.json").write_text('{"model": {"a": 1}}')
    changed = digests_of(folder)
    assert (changed.model == before.model, changed.tokenizer == before.tokenizer) == (True, False)
    (folder / "model-00002-of-00002.safetensors").rename(folder / "model-2.safetensors")
    assert digests_of(folder) == Digests(model=digests_of(folder).model, tokenizer=changed.tokenizer)
    assert digests_of(folder).model != before.model


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_a_folder_that_lacks_a_file_is_refused_naming_it(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(ModelRefused, match=f"{folder} is no model folder: it lacks {missing}$"):
        digests_of(folder)


def test_a_folder_with_weights_of_another_kind_says_what_to_do(folder: Path) -> None:
    for weights in folder.glob("*.safetensors"):
        weights.rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelRefused, match=r"it lacks \*\.safetensors; pytorch_model\.bin is not read: save the model"):
        digests_of(folder)


def test_the_digest_of_a_large_file_is_announced(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        digests_of(folder)
        assert caplog.messages == []
        monkeypatch.setattr(model_folder, "LARGE_BYTES", len(b"{}"))
        digests_of(folder)
    assert f"taking the digest of {folder / 'model-00001-of-00002.safetensors'}, 0.0 GB" in caplog.messages


def test_the_token_is_in_no_repr() -> None:
    read = settings.read_settings({"HF_TOKEN": "hf_secret", "HF_ENDPOINT": ""})
    assert (read.hugging_face_token, read.hugging_face_endpoint) == ("hf_secret", None)
    assert "hf_secret" not in repr(read) + repr(Hub(None, "hf_secret"))
