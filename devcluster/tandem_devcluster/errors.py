"""What can go wrong in the dev cluster, as a tree; the command line prints each as one line.

It knows no cause in detail: whoever raises one of these says what was seen and what to do about it.
"""


class DevClusterError(Exception):
    """Anything a person running the dev cluster should read as one line."""


class BuildError(DevClusterError):
    """The control plane program could not be built."""


class StateError(DevClusterError):
    """The state folder, or a process recorded in it, is not as it must be."""


class StartError(DevClusterError):
    """A part of the cluster did not come up."""


class NamespaceError(DevClusterError):
    """The kernel refused a namespace or a mount."""


class PodConfigError(DevClusterError):
    """A pod asks for something that is absent or that this cluster does not offer."""


class ApiError(DevClusterError):
    """The API server answered with an error status."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
