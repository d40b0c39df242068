"""Knows how calls of tools look to a client: in pieces as they are written, or whole.

Refuses to know how they stand in the text (`domain.tool_calls`), and everything that does not grow: see `present`.

An answer that ended within a call is no answer with calls: its reason stays what ended it, and of the call stands what
had come. A client that goes by the reason does not take half a call for a whole one.

An id has nine letters and digits, as the strictest chat template wants them back (Mistral's), and is made of the
reply's own: another gateway that gave the same reply would give the same ids.
"""

import hashlib
from collections.abc import Sequence

from tandem_runtime.domain.tokens import FinishReason
from tandem_runtime.domain.tool_calls import Argued, Called, CallReader, Event, Said
from tandem_runtime.gateway.present import Answer, ChatPresenter, Head, TokenText
from tandem_runtime.gateway.replies import CallPiece, ChatChoice, ChatChunk, ChatDelta, WholeCall
from tandem_runtime.gateway.tools import ToolUse

ID_LETTERS = 9


class CallPresenter(ChatPresenter):
    """A chat whose answers may call tools. Holds what every choice has said of its calls."""

    def __init__(self, head: Head, token_text: TokenText, tool_use: ToolUse) -> None:
        super().__init__(head, token_text)
        self._tool_use = tool_use
        self._readers: dict[int, CallReader] = {}

    def closing(self, index: int, reason: FinishReason) -> ChatChunk:
        """With what was held back, as it might have become a call."""
        reader = self._reader(index)
        chunk = super().closing(index, reason)
        choice = chunk["choices"][0]
        choice["delta"] = self._told(index, reader.end())
        if _ends_by_calls(reason, reader):
            choice["finish_reason"] = "tool_calls"
        return chunk

    def _delta(self, index: int, text: str) -> ChatDelta:
        return self._told(index, self._reader(index).feed(text))

    def _told(self, index: int, events: Sequence[Event]) -> ChatDelta:
        """At most one piece of each call."""
        words = "".join(event.text for event in events if isinstance(event, Said))
        pieces: dict[int, CallPiece] = {}
        for event in events:
            match event:
                case Called(call, name):
                    pieces[call] = {
                        "index": call,
                        "id": self._id(index, call),
                        "type": "function",
                        "function": {"name": name, "arguments": ""},
                    }
                case Argued(call, text):
                    piece = pieces.setdefault(call, {"index": call, "function": {"arguments": ""}})
                    piece["function"]["arguments"] += text
                case Said():
                    pass
        delta: ChatDelta = {"content": words} if words else {}
        if pieces:
            delta["tool_calls"] = list(pieces.values())
        return delta

    def _whole_choice(self, index: int, answer: Answer) -> ChatChoice:
        choice, reader = super()._whole_choice(index, answer), self._reader(index)
        told = self._told(index, [*reader.feed(answer.text), *reader.end()])
        calls = [_whole_call(piece) for piece in told.get("tool_calls", ())]
        if calls:
            choice["message"]["tool_calls"] = calls
            choice["message"]["content"] = told.get("content")
        if _ends_by_calls(answer.finish, reader):
            choice["finish_reason"] = "tool_calls"
        return choice

    def _reader(self, index: int) -> CallReader:
        use = self._tool_use
        if index not in self._readers:
            self._readers[index] = CallReader(use.format, use.names, inside=use.forced, most=use.most)
        return self._readers[index]

    def _id(self, index: int, call: int) -> str:
        return hashlib.sha256(f"{self.head.id}/{index}/{call}".encode()).hexdigest()[:ID_LETTERS]


def _ends_by_calls(reason: FinishReason | None, reader: CallReader) -> bool:
    return reason is FinishReason.STOP and bool(reader.calls) and not reader.is_cut


def _whole_call(piece: CallPiece) -> WholeCall:
    function = piece["function"]
    return {
        "id": piece["id"],
        "type": "function",
        "function": {"name": function["name"], "arguments": function["arguments"]},
    }
