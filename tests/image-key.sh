#!/usr/bin/env bash
# Prints a key of what a build from scratch by the Dockerfile depends on beside the sources. tests/image.built holds the key of the last
# state that was seen to build; `tests/engine.sh bash tests/image.sh --from-scratch` writes it.
set -euo pipefail
cd "$(dirname "$0")/.."
# The workspace's own packages are sources, which any build compiles; of its manifest, only the profiles concern this one.
profiles() { sed -n '/^\[profile/,/^\[workspace.lints/p' Cargo.toml; }
foreign() { awk 'BEGIN { RS = ""; ORS = "\n\n" } /\nsource = /' Cargo.lock; }
{ rustc --version; cat Dockerfile .dockerignore; profiles; foreign; } | sha256sum | cut -c1-16
