#!/usr/bin/env bash
# fuzz.sh BUILD SECONDS: runs every fuzzer in BUILD/fuzz for SECONDS, from its seeds in fuzz/corpus.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
seconds=$2
for fuzzer in "$build"/fuzz/*_fuzzer; do
  name=$(basename "$fuzzer" _fuzzer)
  work=$(mktemp -d)
  log=$work/log
  echo "fuzz: $name for $seconds s"
  if ! "$fuzzer" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$work/" "$work" "fuzz/corpus/$name" > "$log" 2>&1; then
    tail -60 "$log"
    echo "fuzz: $name failed; the input is in $work" >&2
    exit 1
  fi
  grep -E 'stat::number_of_executed_units' "$log" | sed 's/.*: */fuzz:   executions /'
  rm -rf "$work"
done
