"""Knows how events become bytes of a text/event-stream, and nothing else.

Refuses to know what the events say.

An event is one `data:` line per line of text and an empty line (HTML standard, section 9.2). A line that begins with a
colon is a comment: readers skip it, so it keeps an idle connection alive. OpenAI's streams end with the event `[DONE]`.
"""

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
MEDIA_TYPE = "text/event-stream"


def frame_line(line: bytes) -> bytes:
    """One event that holds no line ends, as JSON in ASCII does not: some clients take U+2028 and U+0085 for such."""
    return b"data: %b\n\n" % line


def frame_event(data: str) -> bytes:
    """One event. `data` may hold line ends of any kind; each starts another `data:` line."""
    lines = data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return ("".join(f"data: {line}\n" for line in lines) + "\n").encode()
