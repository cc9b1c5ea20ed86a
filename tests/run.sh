#!/usr/bin/env bash
# The test command of the README: installs what the tests need on a bare Debian or Ubuntu with rustup, then runs them all.
set -euo pipefail
cd "$(dirname "$0")/.."

bash tests/packages.sh

# Servers that speak SQS, SNS and S3, and their clients.
bash tests/servers.sh

# What builds handlers in five languages.
bash tests/toolchains.sh

# The image, before the tests that run it: a build takes both cores. 77: no container engine can start here, as the tests will say.
bash tests/engine.sh bash tests/image.sh || [ $? = 77 ]

# The library, the binary, and every test; in release, as guests crawl without optimisation.
# One of them measures what guests cost each other, and runs alone.
measured=a_neighbour_keeps_four_fifths_of_its_throughput
cargo test --release --locked -- --skip "$measured"
cargo test --release --locked --test all -- "$measured" --nocapture

# The example's own tests, and that its committed artifact is what its source builds to.
cargo test --locked --manifest-path examples/flights/handler/Cargo.toml
bash examples/flights/build.sh --check

# The benchmark still runs; its figures at this size say little.
MESSAGES=2000 BACKLOG=20000 ROUNDS=1 cargo bench --bench embedded --locked

# A fresh sandbox stays cheap, and a hundred thousand of them take no memory. Alone, so that the figure is one.
cargo bench --bench sandbox --locked

# The same for JavaScript and Python, whose sandboxes are much larger.
bash benches/languages.sh

# The whole year, end to end.
bash examples/flights/full.sh
