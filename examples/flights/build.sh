#!/bin/sh
# Builds flights.wasm from handler/. One toolchain makes the same bytes on every machine: no path of the machine gets in.
# With --check it replaces nothing, and fails if the committed file is not what the source builds to.
set -eu
cd "$(dirname "$0")/handler"
sysroot=$(rustc --print sysroot)
commit=$(rustc -vV | sed -n 's/^commit-hash: //p')
if [ ! -d "$sysroot/lib/rustlib/wasm32-wasip2" ]; then
    rustup target add wasm32-wasip2
fi
cargo fetch --quiet --locked --target wasm32-wasip2

between=$(printf '\037') # flags are separated so that a path may hold a space
flags="-Clink-arg=-zstack-size=65536$between--remap-path-prefix=$PWD=/handler$between--remap-path-prefix=$sysroot/lib/rustlib/src/rust=/rustc/$commit"
for crates in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*; do
    flags="$flags$between--remap-path-prefix=$crates=/crates"
done
CARGO_ENCODED_RUSTFLAGS="$flags" cargo build --release --locked --target wasm32-wasip2
built="${CARGO_TARGET_DIR:-target}/wasm32-wasip2/release/flights.wasm"
if [ "${1:-}" = --check ]; then
    if cmp "$built" ../flights.wasm; then
        echo "flights.wasm is what handler/ builds to"
    elif [ "$(rustc -V | cut -d' ' -f2)" = 1.95.0 ]; then
        echo "flights.wasm is not what handler/ builds to: run examples/flights/build.sh and commit the file" >&2
        exit 1
    else
        echo "NOT CHECKED: flights.wasm was built by rustc 1.95.0, this is $(rustc -V)" >&2
    fi
else
    cp "$built" ../flights.wasm
    ls -l ../flights.wasm
fi
