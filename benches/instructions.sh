#!/usr/bin/env bash
# Counts the instructions of each hot path with callgrind, and compares the counts with benches/instructions.tsv. Fails if a count is
# more than 5 % higher. Instructions are counted because times depend on the other load of the machine.
#   instructions.sh --write   writes benches/instructions.tsv
#   instructions.sh --quick   counts one path, to check that counting works
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=../tests/static.sh
source tests/static.sh

baseline=benches/instructions.tsv
tolerance=5
# Number of iterations. Each path runs with this number and with twice this number. The difference excludes one-time work.
count=${COUNT:-200}

command -v valgrind >/dev/null || bash -c 'root=$1; source tests/install.sh; apt valgrind' _ "$HOME/.cache/hostler/toolchains"
build_all >&2
binary=$release/hot-paths

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Counts the steps themselves, and the thread of the embedded queue, which works for the steps.
instructions() { # PATH COUNT
  # callgrind counts each byte of a `rep stosb` or `rep movsb`. Therefore, the C library must not use these instructions.
  local never=1073741824
  GLIBC_TUNABLES=glibc.cpu.x86_rep_stosb_threshold=$never:glibc.cpu.x86_rep_movsb_threshold=$never \
    HOT_PATH=$1 COUNT=$2 valgrind --tool=callgrind --callgrind-out-file=/dev/null \
    --toggle-collect='hot_paths::steps*' --toggle-collect='*embedded::writer::Thread*::run*' "$binary" 2>"$work/log" ||
    { cat "$work/log" >&2 && exit 1; }
  sed -n 's/.*I *refs: *//p' "$work/log" | tr -d ,
}

printf '# Instructions of one go down each path (benches/hot_paths), as callgrind counts them: benches/instructions.sh --write\n' >"$work/now"
printf '%-44s %12s %12s %8s\n' path before now change
failed=0
while IFS= read -r name; do
  once=$(instructions "$name" "$count")
  twice=$(instructions "$name" $((2 * count)))
  now=$(((twice - once) / count))
  before=$(awk -F'\t' -v name="$name" '$1 == name { print $2 }' "$baseline" 2>/dev/null || true)
  printf '%s\t%s\n' "$name" "$now" >>"$work/now"
  change=$(awk -v before="${before:-0}" -v now="$now" 'BEGIN { if (before) printf "%+.1f", 100 * (now - before) / before; else print "new" }')
  printf '%-44s %12s %12s %7s%%\n' "$name" "${before:--}" "$now" "$change"
  if [ -z "${1:-}" ] && { [ -z "$before" ] || [ "$((100 * now))" -gt "$(((100 + tolerance) * before))" ]; }; then
    failed=1
  fi
done < <("$binary" --names | if [ "${1:-}" = --quick ]; then head -n 1; else cat; fi)

if [ "${1:-}" = --write ]; then
  cp "$work/now" "$baseline"
elif [ "$failed" = 1 ]; then
  echo "more than $tolerance % more instructions, or a path without a figure: if it has to be, benches/instructions.sh --write" >&2
  exit 1
fi
