# `make demo` and `make test` do everything after a clone; `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LAB := -i inventory/lab
SCENARIOS := default swap plan refuse rollback
CLUSTER := router rolling nodes pd
# Tests of bandit that ruff has, too (S104 and so on); bandit would warn of each `nosec` for every harmless word beside it.
RUFF_ASKS := B104,B108,B324,B506
FAULTS := fail-and-return no-way-back interrupted weights
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help venv lock lab demo test lint unit slow molecule faults secrets cuda servers wheelhouse sweep cluster monitoring docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(VENV)/.locked ## make .venv with everything that runs on the controller

$(VENV)/.locked: requirements/controller.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one with make PYTHON=...")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { apt-get update -qq && apt-get install -y -qq python3-venv; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/controller.txt
	@touch $@

lock: venv ## resolve requirements/controller.in again
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --custom-compile-command 'make lock' requirements/controller.in -o requirements/controller.txt

lab: venv ## start the lab: systemd containers in place of GPU hosts
	ansible-playbook $(LAB) playbooks/lab.yml

demo: lab ## deploy the real SGLang with a small model onto a container, prove that it decodes
	ansible-playbook $(LAB) deploy-glm5.yml

test: lint unit molecule ## all checks and tests

lint: venv ## ansible-lint, yamllint, bandit, ruff, mypy, documentation in step
	yamllint --strict .
	ansible-lint --offline
	bandit --quiet --severity-level=medium --skip=$(RUFF_ASKS) --recursive plugins bench docs
	ruff check .
	ruff format --check .
	mypy plugins bench docs

unit: venv ## unit tests
	pytest -n auto

slow: venv ## the unit tests that take minutes: real downloads, cut off, killed, with wrong hashes, onto a full disk
	pytest -n auto -m slow

molecule: venv ## scenarios on containers with the real server
	molecule test --no-command-borders $(SCENARIOS:%=--scenario-name=%)

faults: venv ## every fault of docs/reliability.md, one after the other, and the long scenarios (hours on two cores)
	cd tests && python -m faults.run
	molecule test --no-command-borders $(FAULTS:%=--scenario-name=%)

servers: venv ## the decode check against real servers on the CPU, healthy and broken (a release is built the first time)
	pytest tests/server -n0 -rs

cuda: venv ## CUDA toolkit and driver, from an apt repository made on the spot and from PyPI
	molecule test --no-command-borders --scenario-name=cuda

secrets: venv ## keys, confinement and the documented proxy, on a container
	molecule test --no-command-borders --scenario-name=secrets

wheelhouse: venv ## a release built with the network cut off, from a wheelhouse that is made first
	molecule test --no-command-borders --scenario-name=wheelhouse

sweep: venv ## a sweep with the real server, cut off three times (a quarter of an hour)
	molecule test --no-command-borders --scenario-name=sweep

cluster: venv ## the router, changes without a failed request, one instance over two hosts, prefill and decode apart (an hour on two cores)
	molecule test --no-command-borders $(CLUSTER:%=--scenario-name=%)

monitoring: venv ## the canary, the real Prometheus, and a server of NaN that sets the alarm off (ten minutes)
	molecule test --no-command-borders --scenario-name=monitoring

docs: venv ## write docs/variables.md and docs/catalog.md from what the project reads
	python docs/generate.py

clean: ## take away every container, image and file that demo and test made
	@if [ -x $(BIN)/ansible-playbook ]; then $(BIN)/ansible-playbook $(LAB) playbooks/lab.yml -e lab_state=absent; fi
	rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis .ansible
