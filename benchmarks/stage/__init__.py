"""A whole deployment on this machine, each part a process of its own: what `rpc`, `off_overhead`, `gateway_load` and
the soak are played on."""
