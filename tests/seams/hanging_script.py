"""A model that hangs, as a device does, once it is asked to go on from a prompt."""

import threading

from tandem_runtime.engines.scripted import chain_logits


def hung(prefix: tuple[int, ...]) -> list[float]:
    if prefix != (0,):  # which asks for the width of a row
        threading.Event().wait()
    return chain_logits(prefix)
