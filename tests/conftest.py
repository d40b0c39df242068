"""For every test: a slow machine is no failure, a failing example is printed whole, no event loop is left behind, and
torch computes with one thread, here and in every process that a test starts.
"""

import asyncio
import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tandem_runtime.wire.transport import FEWER_THREADS

settings.register_profile("tandem", deadline=None, print_blob=True)
settings.load_profile("tandem")

# Until 3.14 `asyncio.get_event_loop()` makes a loop where none was ever set. pytest-asyncio asks for the present loop,
# to put it back afterwards, and so left one behind that nobody closes; now it hears that there is none.
asyncio.set_event_loop(None)

# The models are tiny: a second thread gains nothing, and on a busy machine each burns a core while it waits for the
# other. OpenMP reads the number once, when torch is imported.
os.environ["OMP_NUM_THREADS"] = "1"

# As `main` has it. gRPC reads this once, when it is loaded.
for _name, _value in FEWER_THREADS.items():
    os.environ.setdefault(_name, _value)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Whatever a test lets torch have, the next begins with one thread. Most tests never load torch."""
    yield
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
