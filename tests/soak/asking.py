"""Knows what callers of the soak ask for, and how an answer reads, plain or streamed.

Refuses to know sockets and faults.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MARK = "xyzzy-plugh"
"""Stands in each prompt, and nowhere else."""
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"enum": ["yes", "no"]}, "times": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["answer", "times"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A request that always has the same answer: its seed is fixed."""

    name: str
    path: str
    fields: Mapping[str, Any]
    streams: bool = True

    def body(self, *, stream: bool, off: bool = False) -> bytes:
        """Streamed or plain; `off` has it decoded without speculation."""
        body: dict[str, Any] = {"model": "chat", **self.fields}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if off:
            body["speculation"] = {"off": True}
        return json.dumps(body).encode()


def _text(name: str, prompt: str | list[str], *, streams: bool = True, **fields: Any) -> Kind:
    marked = f"{MARK} {prompt}" if isinstance(prompt, str) else [f"{MARK} {each}" for each in prompt]
    return Kind(name, TEXT, {"prompt": marked, "max_tokens": 48, "seed": len(name), **fields}, streams)


def _chat(name: str, words: str, **fields: Any) -> Kind:
    messages = [{"role": "user", "content": f"{MARK} {words}"}]
    return Kind(name, CHAT, {"messages": messages, "max_tokens": 64, "seed": len(name), **fields})


KINDS: Sequence[Kind] = (
    _text("greedy", "the quick brown", temperature=0, max_tokens=96),
    _text("sampled", "a fox is quick", temperature=1, logprobs=2),
    _text("three choices", "the lazy dog", n=3, temperature=0.8),
    _text("stop strings", "jumps over", stop=["e", "ab", "zz"], temperature=0.9),
    _text("two prompts, twice each", ["a fox", "the dog"], n=2, temperature=0.7, max_tokens=24),
    _text("penalties", "brown fox", presence_penalty=0.8, frequency_penalty=0.5, repetition_penalty=1.2),
    _text("a bias", "over the", logit_bias={"70": 6, "75": -100}, top_k=40, top_p=0.9, min_p=0.01),
    _text("an echo", "naïve 😀", echo=True, temperature=0),
    _text("the best of three", "is not", best_of=3, n=1, streams=False),
    _text("a least length", "and the dog", min_tokens=40, ignore_eos=True),
    _text("bad words", "quick", bad_words=["e", "the"]),
    _text("a regular expression", "a number: ", structured_outputs={"regex": "[0-9]{3}-[a-f]{4,8}"}),
    _text("plain on purpose", "lazy", speculation={"off": True}),
    _text("one guess at most", "dog", speculation={"maxDraftTokens": 1}, max_tokens=64),
    _chat("a chat", "the fox", temperature=1),
    _chat("a schema", "is it", response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}),
    _chat("a forced call", "how is it", tools=[WEATHER], tool_choice="required", max_tokens=120),
    _chat("a free call", "how is it", tools=[WEATHER]),
    _chat("a prediction", "again", prediction={"type": "content", "content": "the quick brown fox " * 8}),
    _chat("many words about words", "tell", n=4, logprobs=True, top_logprobs=20, max_tokens=96),
    _chat("in no hurry", "later", n=2, service_tier="flex", max_tokens=120),
)


@dataclass(slots=True)
class Part:
    """One choice as it was told, whole or so far."""

    text: str = ""
    calls: dict[int, list[str]] = field(default_factory=dict)
    """Name and arguments, by number. Ids are made anew each time."""
    reason: str | None = None

    def call(self, index: int, name: str, arguments: str) -> None:
        known = self.calls.setdefault(index, ["", ""])
        known[0] += name
        known[1] += arguments

    def begins(self, whole: "Part") -> bool:
        """Whether it is the beginning of that."""
        calls = all(
            index in whole.calls and whole.calls[index][0] == name and whole.calls[index][1].startswith(arguments)
            for index, (name, arguments) in self.calls.items()
        )
        return calls and whole.text.startswith(self.text) and self.reason in (None, whole.reason)


@dataclass(slots=True)
class Said:
    """An answer: its choices by index, and how many tokens were counted, once that was told."""

    parts: dict[int, Part] = field(default_factory=dict)
    tokens: int | None = None

    def part(self, index: int) -> Part:
        return self.parts.setdefault(index, Part())

    def begins(self, whole: "Said") -> bool:
        return all(index in whole.parts and part.begins(whole.parts[index]) for index, part in self.parts.items())


def read_plain(content: bytes) -> Said:
    told = json.loads(content)
    said = Said(tokens=told["usage"]["completion_tokens"])
    for choice in told["choices"]:
        part = said.part(choice["index"])
        message = choice.get("message") or {"content": choice["text"]}
        part.text, part.reason = message["content"] or "", choice["finish_reason"]
        for index, call in enumerate(message.get("tool_calls") or ()):
            part.call(index, call["function"]["name"], call["function"]["arguments"])
    return said


def events_of(content: bytes) -> Iterator[dict[str, Any]]:
    """Those that came whole, the mark of the end left out."""
    for event in content.decode(errors="replace").split("\n\n")[:-1]:
        if event.startswith("data: {"):
            yield json.loads(event.removeprefix("data: "))


def read_stream(content: bytes) -> Said:
    """As far as it came."""
    said = Said()
    for event in events_of(content):
        for choice in event.get("choices", ()):
            part, delta = said.part(choice["index"]), choice.get("delta") or {"content": choice.get("text")}
            part.text += delta.get("content") or ""
            part.reason = choice["finish_reason"] or part.reason
            for call in delta.get("tool_calls") or ():
                function = call["function"]
                part.call(call["index"], function.get("name", ""), function.get("arguments", ""))
        said.tokens = (event.get("usage") or {}).get("completion_tokens", said.tokens)
    return said
