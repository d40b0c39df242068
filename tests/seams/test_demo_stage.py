"""What the demo and the cluster tests hold of a running cluster, beside real processes."""

import io
import os
import time

import pytest

from tandem_devcluster.errors import StateError
from tandem_devcluster.testing import Followed


def test_a_followed_object_is_the_newest_that_was_sent() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as lines, os.fdopen(writing, "w") as sent:
        followed = Followed(lines)
        sent.write('{\n"seen": 1\n}\n')
        sent.flush()
        assert followed.latest == {"seen": 1}
        sent.write('{\n"seen": 2\n}\n')
        sent.flush()
        while followed.latest == {"seen": 1}:
            time.sleep(0.001)
        assert followed.latest == {"seen": 2}
        sent.close()
        followed.join()


@pytest.mark.parametrize("sent", ["", '{\n"seen": 1\n}\n'])
def test_a_watch_that_ended_is_an_error_and_not_an_old_answer(sent: str) -> None:
    followed = Followed(io.StringIO(sent))
    followed.join()
    with pytest.raises(StateError, match="the watch ended"):
        _ = followed.latest
