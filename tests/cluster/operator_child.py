"""What a forked process does to be an operator: its own environment, its own log, and then the product's `main`.

It imports nothing else of the tests, since every operator that a test starts loads it.
"""

import os
import sys
from collections.abc import Mapping

from kubernetes.aio.config import kube_config

from tandem_operator.main import main


def become_operator(environment: Mapping[str, str], log: str) -> None:
    """Ends the process with the operator's exit status."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.environ.update(environment)
    # The client has read this variable when it was loaded, before this process was forked.
    kube_config.KUBE_CONFIG_DEFAULT_LOCATION = environment["KUBECONFIG"]
    sys.exit(main([]))
