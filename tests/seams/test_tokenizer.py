"""The Tokenizer port over a folder, against transformers' own reading of the same folder."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.seams.tokenizer_folders import CHAT_TEMPLATE, byte_level_folder
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from tandem_runtime.domain.errors import BadRequest, ModelRefused
from tandem_runtime.domain.stopping import Detokenizer
from tandem_runtime.domain.tokens import SamplingDefaults
from tandem_runtime.domain.tool_calls import ToolFormat
from tandem_runtime.tokenizer import FolderTokenizer

MESSAGES: list[dict[str, object]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "the quick brown fox 😀"},
]


def test_texts_and_chats_become_the_ids_that_transformers_gives(tmp_path: Path) -> None:
    ours = FolderTokenizer(byte_level_folder(tmp_path))
    theirs: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(tmp_path / "tokenizer.json"),
        bos_token="<s>",
        eos_token="</s>",
        chat_template=CHAT_TEMPLATE,
    )
    for text in ("the quick brown fox", "", "naïve 😀\n\n", "</s>"):
        assert list(ours.encode(text)) == theirs(text)["input_ids"]
    expected = theirs.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert list(ours.encode_chat(MESSAGES)) == expected
    assert ours.size == len(theirs)


def test_ids_become_the_text_again_piece_by_piece_with_whole_characters(tmp_path: Path) -> None:
    tokenizer = FolderTokenizer(byte_level_folder(tmp_path))
    text = "the quick 😀 naïve\n  dog"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    reader = Detokenizer(tokenizer.decode, ids[:1])
    pieces = [reader.feed(token) for token in ids[1:]]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize(
    ("generation", "config", "ends"),
    [
        ({"eos_token_id": 1}, {"eos_token_id": 5}, {1}),
        ({"eos_token_id": [1, 7]}, {}, {1, 7}),
        ({}, {"eos_token_id": 5}, {5}),
        ({"eos_token_id": None}, {"eos_token_id": 5}, {5}),
        ({}, {}, set()),
    ],
)
def test_end_tokens_come_from_the_generation_config_and_then_the_config(
    tmp_path: Path, generation: dict[str, object], config: dict[str, object], ends: set[int]
) -> None:
    byte_level_folder(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert FolderTokenizer(tmp_path).end_tokens == ends


@pytest.mark.parametrize(
    ("written", "defaults"),
    [
        (
            {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
            SamplingDefaults(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05),
        ),
        ({"temperature": 1, "min_p": 0.1, "top_k": None}, SamplingDefaults(min_p=0.1)),
        ({}, SamplingDefaults()),
    ],
)
def test_what_the_makers_of_a_model_advise_is_read(
    tmp_path: Path, written: dict[str, object], defaults: SamplingDefaults
) -> None:
    byte_level_folder(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(written))
    assert FolderTokenizer(tmp_path).defaults == defaults


TEMPLATES = {
    "JSON with signs of HTML and letters of their own": "{{ messages[1] | tojson }}{{ messages | tojson(indent=2) }}",
    "a generation block": (
        "{% for m in messages %}\n{% generation %}{% set kept = m.role %}{{ kept }}{% endgeneration %}\n{% endfor %}"
    ),
    "a loop that is left, and blocks on lines of their own": (
        "{% for m in messages %}\n  {% if loop.index0 == 1 %}\n{% break %}\n  {% endif %}\n"
        "{{- m['content'] | trim }}\n{% endfor %}"
    ),
    "what is not defined": "{% if strftime_now is defined %}{% endif %}{% if tools %}x{% endif %}{{ thinking }}.",
    "texts as Python has them": "{{ messages[1].content.split('<')[-1].strip() }}{{ messages[::-1][0]['role'] }}",
}


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_templates_mean_what_they_mean_to_transformers(template: str, tmp_path: Path) -> None:
    messages: list[dict[str, object]] = [
        {"role": "system", "content": " Be brief. "},
        {"role": "user", "content": "a < b & naïve 😀 'x'"},
    ]
    byte_level_folder(tmp_path, settings={"chat_template": template})
    theirs: Any = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"), chat_template=template)  # type: ignore[no-untyped-call]
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert list(FolderTokenizer(tmp_path).encode_chat(messages)) == expected


def test_of_several_templates_the_default_is_taken_and_a_file_goes_before_all(tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "dog"}, {"name": "default", "template": "fox"}]
    byte_level_folder(tmp_path, settings={"chat_template": several})
    tokenizer = FolderTokenizer(tmp_path)
    assert tokenizer.decode(tokenizer.encode_chat(MESSAGES)) == "fox"
    (tmp_path / "chat_template.jinja").write_text("the quick")
    tokenizer = FolderTokenizer(tmp_path)
    assert tokenizer.decode(tokenizer.encode_chat(MESSAGES)) == "the quick"


def test_a_template_may_lie_beside_the_settings(tmp_path: Path) -> None:
    byte_level_folder(tmp_path, settings={"chat_template": None})
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    tokenizer = FolderTokenizer(tmp_path)
    assert tokenizer.decode(tokenizer.encode_chat(MESSAGES)) == "Be brief."


def test_a_model_without_a_template_refuses_chats_and_serves_text(tmp_path: Path) -> None:
    tokenizer = FolderTokenizer(byte_level_folder(tmp_path, settings={"chat_template": None}))
    assert tokenizer.encode("the fox")
    with pytest.raises(BadRequest, match="no chat template") as caught:
        tokenizer.encode_chat(MESSAGES)
    assert caught.value.parameter == "messages"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].no.such.thing }}",
    ],
    ids=["says so itself", "reaches for Python", "changes its arguments", "reads what is not there"],
)
def test_what_a_template_may_not_do_is_a_refusal_of_the_messages(tmp_path: Path, template: str) -> None:
    tokenizer = FolderTokenizer(byte_level_folder(tmp_path, settings={"chat_template": template}))
    with pytest.raises(BadRequest) as caught:
        tokenizer.encode_chat(MESSAGES)
    assert caught.value.parameter == "messages"


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("tokenizer.json", "{", "tokenizer.json"),
        ("tokenizer.json", None, "tokenizer.json"),
        ("tokenizer_config.json", "{", "tokenizer_config.json"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json"),
        ("tokenizer_config.json", '{"chat_template": [{"name": "a"}]}', "chat_template"),
        ("tokenizer_config.json", '{"chat_template": "{% for %}"}', "chat template"),
        ("tokenizer_config.json", '{"chat_template": 3}', "chat_template"),
        ("generation_config.json", '{"eos_token_id": "</s>"}', "eos_token_id"),
        ("generation_config.json", '{"temperature": "0.7"}', "temperature = '0.7'"),
        ("generation_config.json", '{"temperature": 3}', "temperature = 3"),
        ("generation_config.json", '{"top_p": 0}', "top_p = 0"),
        ("generation_config.json", '{"top_p": NaN}', "top_p = nan"),
        ("generation_config.json", '{"top_k": 20.5}', "top_k = 20.5"),
        ("generation_config.json", '{"min_p": true}', "min_p = True"),
        ("generation_config.json", '{"repetition_penalty": 0}', "repetition_penalty = 0"),
        ("generation_config.json", "[" * 100_000, "generation_config.json"),
    ],
)
def test_a_folder_that_cannot_be_read_is_refused_by_file_and_field(
    tmp_path: Path, name: str, content: str | None, named: str
) -> None:
    byte_level_folder(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(ModelRefused, match=named):
        FolderTokenizer(tmp_path)


def test_a_template_that_is_no_text_is_refused_by_its_file(tmp_path: Path) -> None:
    byte_level_folder(tmp_path, settings={"chat_template": None})
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelRefused, match=r"chat_template\.jinja is no text"):
        FolderTokenizer(tmp_path)


def test_other_threads_go_on_while_a_long_text_is_read(tmp_path: Path) -> None:
    tokenizer = FolderTokenizer(byte_level_folder(tmp_path))
    begun, ended = threading.Event(), threading.Event()

    def read() -> None:
        begun.set()
        tokenizer.encode("the fox " * 200_000)
        ended.set()

    reading = threading.Thread(target=read)
    reading.start()
    begun.wait()
    turns = 0
    while not ended.wait(timeout=0.001):
        turns += 1
    reading.join()
    assert turns > 20


QWEN_LIKE = """{% if tools %}<|system|>{% for tool in tools %}
{{ tool | tojson }}{% endfor %} Answer by <tool_call>{"name": <name>, "arguments": <object>}</tool_call>{% endif %}
{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for call in m.tool_calls or [] %}
<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>
{% endfor %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
TOOLS: list[dict[str, object]] = [
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
]


def test_tools_and_calls_are_told_to_a_model_as_by_transformers(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": {"at": "the fox"}}}
    messages: list[dict[str, object]] = [
        *MESSAGES,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "a dog", "tool_call_id": "1"},
    ]
    byte_level_folder(tmp_path, settings={"chat_template": QWEN_LIKE})
    theirs: Any = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"), chat_template=QWEN_LIKE)  # type: ignore[no-untyped-call]
    ours = FolderTokenizer(tmp_path)
    for tools in (TOOLS, []):
        expected = theirs.apply_chat_template(
            messages, tools=tools or None, add_generation_prompt=True, return_dict=False
        )
        assert list(ours.encode_chat(messages, tools)) == expected


@pytest.mark.parametrize(
    ("template", "format"),
    [
        (QWEN_LIKE, ToolFormat.HERMES),
        ('{{ tools }}Say {"name": name, "parameters": arguments}. {{ messages }}', ToolFormat.LLAMA),
        ("{% if tools is defined %}[AVAILABLE_TOOLS]{{ tools }}{% endif %}[TOOL_CALLS]", ToolFormat.MISTRAL),
        ("{{ tools }}[TOOL_CALLS]name[ARGS]{}", None),
        ("{{ tools }}<tool_call><function=name><parameter=a>1</parameter></function></tool_call>", None),
        ("{{ tools }}call them as you like", None),
        ("<tool_call>{{ messages }}", None),
        (None, None),
    ],
)
def test_how_a_model_writes_calls_is_read_from_its_template(
    tmp_path: Path, template: str | None, format: ToolFormat | None
) -> None:
    assert FolderTokenizer(byte_level_folder(tmp_path, settings={"chat_template": template})).tool_format is format


def test_the_template_for_tools_is_taken_where_there_are_some(tmp_path: Path) -> None:
    several = [
        {"name": "tool_use", "template": "dog{{ tools[0].type }}[TOOL_CALLS]"},
        {"name": "default", "template": "fox"},
    ]
    tokenizer = FolderTokenizer(byte_level_folder(tmp_path, settings={"chat_template": several}))
    assert tokenizer.tool_format is ToolFormat.MISTRAL
    assert tokenizer.decode(tokenizer.encode_chat(MESSAGES)) == "fox"
    assert tokenizer.decode(tokenizer.encode_chat(MESSAGES, TOOLS)) == "dogfunction[TOOL_CALLS]"


@pytest.mark.parametrize(
    "asks", ["'arguments: ' + messages[0].arguments", "1 / messages[0].arguments.day", "messages[9].x"]
)
def test_messages_that_a_template_was_not_made_for_are_the_callers_to_mend(tmp_path: Path, asks: str) -> None:
    tokenizer = FolderTokenizer(byte_level_folder(tmp_path, settings={"chat_template": f"{{{{ {asks} }}}}"}))
    with pytest.raises(BadRequest, match="chat template refuses these messages") as refused:
        tokenizer.encode_chat([{"role": "user", "content": "", "arguments": {"day": 0}}])
    assert refused.value.parameter == "messages"


def test_what_opens_a_call_is_text_also_where_it_is_a_special_token(tmp_path: Path) -> None:
    byte_level_folder(tmp_path, settings={"chat_template": "{{ tools }}[TOOL_CALLS]"})
    model = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    model.add_special_tokens(["[TOOL_CALLS]"])
    model.save(str(tmp_path / "tokenizer.json"))
    tokenizer = FolderTokenizer(tmp_path)
    ids = (*tokenizer.encode("the fox"), *tokenizer.continuation("[TOOL_CALLS] [a dog[TOOL_CALLS]"), 1)
    assert tokenizer.decode(ids) == "the fox [a dog"
    assert tokenizer.decode_calls(ids) == "the fox[TOOL_CALLS] [a dog[TOOL_CALLS]"
    assert tokenizer.decode_calls(ids[:3]) == tokenizer.decode(ids[:3])
    opening = tokenizer.continuation("[TOOL_CALLS]")
    assert tokenizer.decode_calls(opening * 2000) == "[TOOL_CALLS]" * 2000


def test_a_continuation_has_no_special_tokens_of_its_own(tmp_path: Path) -> None:
    tokenizer = FolderTokenizer(byte_level_folder(tmp_path))
    assert tokenizer.encode("the fox") == (0, *tokenizer.continuation("the fox"))
