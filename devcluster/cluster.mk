# The dev cluster: a real Kubernetes control plane with processes for pods. See docs/devcluster.md.
CLUSTER := $(BIN)/python -m tandem_devcluster

.PHONY: controlplane cluster-up cluster-down cluster-status

controlplane: $(STAMP) ## build the control plane once into the cache (12 minutes on 2 cores, then nothing)
	@$(CLUSTER) build

cluster-up: controlplane ## start the dev cluster and print how to reach it
	@$(CLUSTER) up --folder /opt/tandem/pairs=$(CURDIR)/examples/pairs

cluster-down: $(STAMP) ## stop the dev cluster and everything it started
	@$(CLUSTER) down

cluster-status: $(STAMP) ## show the dev cluster's nodes and addresses
	@$(CLUSTER) status
