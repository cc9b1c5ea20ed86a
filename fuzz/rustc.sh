#!/usr/bin/env bash
# Cargo's RUSTC_WRAPPER for the fuzz targets: hostler and the parsers it feeds are compiled with the sanitizer and the fuzzer's
# coverage; the compiler of handlers and the cloud's SDK, nine tenths of the code, without, or the build would take an hour.
set -euo pipefail

crate=
for ((i = 1; i < $#; i++)); do
  [ "${!i}" != --crate-name ] || { i=$((i + 1)) && crate=${!i} && break; }
done
case $crate in
aws_* | cranelift_* | crypto_* | futures_* | h2 | hyper* | icu_* | libsqlite3_sys | regalloc2 | reqwest | rusqlite | rustls* | \
  tokio* | tracing* | wasm* | wasmtime* | wast | wiggle* | wit_* | zerocopy)
  kept=()
  for argument; do
    case $argument in
    -Zsanitizer=* | -Cpasses=sancov-module | -Cllvm-args=-sanitizer-coverage-*) ;;
    *) kept+=("$argument") ;;
    esac
  done
  set -- "${kept[@]}"
  ;;
esac
exec "$@"
