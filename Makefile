# Everything a person or CI does here, by name. `make` alone lists it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
BIN := .venv/bin
LOCK := $(shell command -v uv || echo $(CURDIR)/.uv/bin/uv) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' $(if $(UPGRADE),--upgrade)
CODE := scanflow agents client server tests tutorials

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{ printf "  make %-10s %s\n", $$1, $$2 }'

# MNIST and MNIST-C, where they lie beside the checkout; elsewhere scikit-learn's digits, and corruptions made of them.
BESIDE := $(if $(DATA),,$(if $(wildcard ../shared/data/mnist_10k.npz),$(wildcard ../shared/data/mnist_c_2k.npz)))

.PHONY: demo
demo: ## Install into .venv and run the demo; DATA=digits|mnist|PATH chooses the data, DEMO_ARGS passes more
	@requirements/install demo .venv
	@$(BIN)/scanflow demo $(if $(DATA),--data '$(DATA)') $(if $(BESIDE),--data ../shared/data/mnist_10k.npz --drifted $(BESIDE)) \
		$(DEMO_ARGS)

.PHONY: env
env: ## Install what the targets below need into .venv
	@requirements/install dev .venv

.PHONY: check
check: lint types imports test ## What a change must pass: lint, types, imports and test

# loadscope: what a module prepares for its tests is prepared once. (loadgroup would say it of some modules only, and
# pytest-xdist 3.8 does not group under pytest 9.2, whose tests' ids it cannot change.) Modules are begun as tests/conftest.py
# orders them, the long ones first, so that no runner is left alone with one at the end; reordered, those of the most tests
# would come first.
.PHONY: test
test: env ## Run the suite that needs no cluster, in under five minutes; PYTEST_ARGS passes more
	@$(BIN)/python -m tests.suite -q -n 3 --dist loadscope --no-loadscope-reorder -m '$(GATE)' $(PYTEST_ARGS)
GATE := not (slow or science or endurance or benchmark or mpi or browser or torch or oidc or supply or cluster or cluster_slow or gpu)

.PHONY: nightly
nightly: ## Run what takes longer, stage by stage, in an hour or two; STAGES="mpi science" some of it
	@.ci/nightly $(STAGES)

.PHONY: lint
lint: env ## Check style (ruff check, ruff format)
	@$(BIN)/ruff check --quiet $(CODE)
	@$(BIN)/ruff format --quiet --check $(CODE) || { echo "Not formatted as ruff does it. Run: make format"; exit 1; }

.PHONY: format
format: env ## Rewrite the code as lint wants it, where that can be done by machine
	@$(BIN)/ruff check --quiet --fix-only $(CODE)
	@$(BIN)/ruff format --quiet $(CODE)

.PHONY: types mypy pyright
types: mypy pyright ## Check types, twice: mypy (strict) and pyright
mypy: env
	@$(BIN)/mypy --no-error-summary
pyright: env
	@$(BIN)/basedpyright --warnings

.PHONY: imports
imports: env ## Check which part may import which
	@$(BIN)/lint-imports --no-logo --cache-dir .cache/import-linter

.PHONY: wheel
wheel: env ## Build the wheel, install it alone in an empty environment, and use it from there
	@$(BIN)/python -m tests.wheel

BUILDER = $(firstword $(foreach name,buildah podman docker,$(if $(shell command -v $(name)),$(name))))
TAG = latest
.PHONY: images
images: env ## Build the base images; BUILDER, REGISTRY=host:5000/ (pushed there), TAG, BUILD_ARGS
	@rm -rf dist && $(BIN)/python -m hatchling build -t wheel -d dist
	@set -e; for name in base agent server tracker; do image=$(REGISTRY)scanflow/$$name:$(TAG); \
		$(BUILDER) build $(BUILD_ARGS) --build-arg BASE_IMAGE=$(REGISTRY)scanflow/base:$(TAG) -f deploy/images/$$name/Dockerfile -t $$image .; \
		$(if $(REGISTRY),$(or $(PUSH),$(BUILDER) push) $$image;) done

MATERIALS = wheel=demo base=image-base agent=image-server server=image-server tracker=image-server
.PHONY: sbom
sbom: ## Write what wheel and images are made of (CycloneDX) into dist/sbom
	@requirements/install supply .cache/supply && mkdir -p dist/sbom
	@set -e; for pair in $(MATERIALS); do \
		PYTHONWARNINGS=ignore .cache/supply/bin/cyclonedx-py requirements requirements/$${pair#*=}.txt \
			--pyproject pyproject.toml --output-reproducible -o dist/sbom/$${pair%=*}.cdx.json; done

.PHONY: release-files release-images release-docs
release-files: env sbom ## Build what a release of this commit has into dist/release; TAG=v0.1.0 checks the tag first
	@$(BIN)/python -m tests.release $(if $(TAG),--tag $(TAG))

# Attestations (SBOM, provenance) are pushed with the image, by the builder itself.
release-images: ## Build and push the base images with SBOM and provenance; REGISTRY=host/project/, TAG=0.1.0
	@$(if $(REGISTRY),,echo "Name where to push: make release-images REGISTRY=host/project/ TAG=0.1.0"; exit 2;) \
		SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(MAKE) images REGISTRY=$(REGISTRY) TAG=$(TAG) \
		BUILDER="docker buildx" PUSH=true BUILD_ARGS="--push --sbom=true --provenance=mode=max"

release-docs: env ## Build the documentation with the version on each page into site/
	@DOCS_VERSION="Scanflow $$($(BIN)/python -m tests.release --version)" NO_MKDOCS_2_WARNING=1 \
		$(BIN)/mkdocs build --strict -f .ci/versioned-docs.yml

.PHONY: docs
docs: env ## Build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: reference
reference: env ## Write docs/reference anew from the code
	@$(BIN)/python -m tests.reference

.PHONY: bench
bench: env ## Measure beside Metaflow, Prefect, MLServer and others, and write docs/benchmarks.md; BENCH_ARGS passes more
	@requirements/install bench .cache/bench
	@requirements/install bench-serving .cache/bench-serving
	@$(BIN)/python -m tests.benchmarks --peers .cache/bench --servers .cache/bench-serving $(BENCH_ARGS)

.PHONY: bench-gpu
bench-gpu: env ## Measure a GPU given to one, two and four servers, and write the table of docs/gpu.md; BENCH_ARGS passes more
	@if nvidia-smi -L >/dev/null 2>&1; then requirements/install torch .cache/torch; fi
	@PYTHONPATH=$$(echo $(CURDIR)/.cache/torch/lib/python*/site-packages) $(BIN)/python -m tests.device $(BENCH_ARGS)

.PHONY: protos
protos: env ## Build the gRPC protocol's description from its .proto
	@cd scanflow/protos && ../../$(BIN)/python -m grpc_tools.protoc --proto_path=. \
		--descriptor_set_out=open_inference_grpc.binpb open_inference_grpc.proto

.PHONY: lock
lock: ## Write requirements/*.txt anew from pyproject.toml; UPGRADE=1 takes newer versions
	@cd requirements && $(LOCK) ../pyproject.toml --all-extras --group ../pyproject.toml:dev --group ../pyproject.toml:uv -o dev.txt
	@cd requirements && $(LOCK) ../pyproject.toml --all-extras --group ../pyproject.toml:build -c dev.txt -o demo.txt
	@cd requirements && $(LOCK) ../pyproject.toml --extra kubernetes --extra store --extra tracking -c dev.txt -o image-base.txt
	@cd requirements && $(LOCK) ../pyproject.toml $(patsubst %,--extra %,agents kubernetes oidc s3 server store tracking) -c dev.txt \
		-o image-server.txt
	@cd requirements && $(LOCK) --group ../pyproject.toml:uv -c dev.txt -o uv.txt
	@cd requirements && $(LOCK) --group ../pyproject.toml:bench -o bench.txt
	@cd requirements && $(LOCK) --group ../pyproject.toml:bench-serving -o bench-serving.txt
	@cd requirements && $(LOCK) --group ../pyproject.toml:torch -c dev.txt -o torch.txt
	@cd requirements && $(LOCK) --group ../pyproject.toml:oidc-provider -c dev.txt -o oidc-provider.txt
	@cd requirements && $(LOCK) --group ../pyproject.toml:browser -c dev.txt -o browser.txt
	@cd requirements && $(LOCK) --group ../pyproject.toml:supply -c dev.txt -o supply.txt

.PHONY: clean
clean: ## Remove what the targets above made, .venv included
	rm -rf .venv .uv .cache dist site .pytest_cache .ruff_cache .hypothesis
