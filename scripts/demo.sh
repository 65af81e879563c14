#!/usr/bin/env bash
# demo.sh HEADWAY: reads a document whose KV cache is 16 times larger than the fast tier may be, and
# answers a question about a fact hidden in it. Then the same without a limit: the tokens are equal.
set -euo pipefail
cd "$(dirname "$0")/.."
headway=$1
question="What is the special magic number for lonely-castle mentioned in the text?"
disk=$(mktemp -d "${TMPDIR:-/tmp}/headway-demo.XXXXXX")
trap 'rm -rf "$disk"' EXIT

echo "The document: examples/document.txt, $(wc -w < examples/document.txt) words. Its KV cache takes about 130 MiB;"
echo "the fast tier gets 8 MiB, host memory 64 MiB, the disk the rest."
echo "Question: $question"
echo
"$headway" run models/demo --file examples/document.txt --ask "$question" \
  --kv-memory 8MiB --host-memory 64MiB --disk-memory 1GiB --disk-path "$disk" \
  -n 48 --compare-resident
