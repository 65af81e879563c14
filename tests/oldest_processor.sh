#!/usr/bin/env bash
# oldest_processor.sh QEMU HEADWAY MODEL: on a processor with AVX2 and nothing newer, which QEMU
# stands for, the program gives the tokens that it gives here with --cpu-isa avx2. Code for newer
# processors that is run unasked ends it there.
set -euo pipefail
qemu=$1 headway=$2 model=$3

same() {
  local here there
  here=$("$headway" run "$model" --device cpu -t 1 -n 2 "$@" --cpu-isa avx2 2> /dev/null)
  there=$("$qemu" -cpu Haswell "$headway" run "$model" --device cpu -t 1 -n 2 "$@" 2> /dev/null) || {
    echo "run $* ends with status $? on an older processor" >&2
    exit 1
  }
  [ "$here" = "$there" ] || { echo "run $*: '$there' instead of '$here'" >&2; exit 1; }
}

same -p "The house"
same -p "The house was" --kv-encoding int8 --chunk 3
