#!/usr/bin/env bash
# fuzz.sh BUILD SECONDS: runs every fuzzer in BUILD/fuzz for SECONDS, from its seeds in fuzz/corpus and
# with its words in fuzz/dictionary, two at a time.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
seconds=$2
run() {
  local fuzzer=$1 name work words=()
  name=$(basename "$fuzzer" _fuzzer)
  work=$(mktemp -d)
  [ ! -e "fuzz/dictionary/$name" ] || words=(-dict="fuzz/dictionary/$name")
  if ! "$fuzzer" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    "${words[@]}" -artifact_prefix="$work/" "$work" "fuzz/corpus/$name" > "$work/log" 2>&1; then
    tail -60 "$work/log"
    echo "fuzz: $name failed; the input is in $work" >&2
    return 1
  fi
  sed -n "s/stat::number_of_executed_units: */fuzz: $name for $seconds s, executions /p" "$work/log"
  rm -rf "$work"
}
export -f run
export seconds
printf '%s\0' "$build"/fuzz/*_fuzzer | xargs -0 -n 1 -P 2 bash -c 'run "$1"' run
