#!/usr/bin/env bash
# Prints a key of what a build from scratch by the Dockerfile depends on beside the workspace: of Cargo.lock the packages from elsewhere.
# tests/image.built holds the key of the last state that was seen to build; `tests/engine.sh bash tests/image.sh --from-scratch` writes it.
set -euo pipefail
cd "$(dirname "$0")/.."
{ rustc --version; cat Dockerfile .dockerignore Cargo.toml; awk 'BEGIN { RS = "" } /\nsource = /' Cargo.lock; } | sha256sum | cut -c1-16
