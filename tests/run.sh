#!/usr/bin/env bash
# The test command of the README: installs what the tests need on a bare Debian or Ubuntu with rustup, then runs every test.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=static.sh
source tests/static.sh

bash tests/packages.sh
# Servers that speak SQS, SNS and S3, and their clients; and what builds handlers in five languages.
bash tests/servers.sh
bash tests/toolchains.sh

# The example that is committed as built; first, because it takes a minute.
cargo test --locked --manifest-path examples/flights/handler/Cargo.toml
bash examples/flights/build.sh --check

# Every test of the library and the commands; in release, as guests crawl without optimisation.
build_all
HOSTLER_BIN=$release/hostler bash tests/engine.sh bash tests/image.sh || [ $? = 77 ]
# All but one, which measures what guests cost each other: `tests/proofs.sh neighbour`.
cargo test --release --workspace --locked -- --skip neighbour_keeps_its_throughput
