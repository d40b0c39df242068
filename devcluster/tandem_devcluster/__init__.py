"""A Kubernetes cluster for development and tests: the real control plane, with local processes in place of containers.

It knows nothing of Tandem: the operator, the runtime and the charts meet it only through the Kubernetes API.
"""
