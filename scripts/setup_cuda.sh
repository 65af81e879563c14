#!/usr/bin/env bash
# setup_cuda.sh [--runtime]: what a build for NVIDIA GPUs needs and this machine lacks, from PyPI's
# wheels into .deps/, which git ignores. Versions and hashes: scripts/cuda_requirements.txt.
#   .deps/include   headers of cuDNN's frontend, and of cuDNN where there is no cudnn.h
#   .deps/cuda      compiler, headers and libraries, where there is no nvcc of CUDA 13
#   .deps/licenses  their licences
# With --runtime also the libraries that scripts/package.sh puts beside the program.
# cmake/Cuda.cmake looks for the compiler in the same places.
set -euo pipefail
cd "$(dirname "$0")/.."
deps=$PWD/.deps
fail() {
  echo "setup: $1" >&2
  exit 1
}

is_nvcc_13() {
  local major
  major=$("$1" --version 2> /dev/null | sed -n 's/.*release \([0-9]*\)\..*/\1/p') || return 1
  [ "${major:-0}" -ge 13 ]
}
toolkit=
for nvcc in "${CUDACXX:-}" /usr/local/cuda/bin/nvcc "$(command -v nvcc || true)"; do
  [ -n "$nvcc" ] && is_nvcc_13 "$nvcc" || continue
  toolkit=$(cd "$(dirname "$(readlink -f "$nvcc")")/.." && pwd)
  break
done
[ "$toolkit" != "$deps/cuda" ] || toolkit=

has_cudnn_9() {
  local include
  for include in ${toolkit:+"$toolkit/include"} /usr/local/cuda/include /usr/local/include /usr/include \
    /usr/include/x86_64-linux-gnu; do
    [ -e "$include/cudnn.h" ] || continue
    grep -qs '^#define CUDNN_MAJOR 9' "$include/cudnn_version.h" && return 0
  done
  return 1
}

# What is wanted: packages of cuda_requirements.txt.
wanted=(nvidia-cudnn-frontend)
libraries=(nvidia-cuda-runtime nvidia-cuda-nvrtc nvidia-cublas nvidia-cudnn-cu13)
if [ -z "$toolkit" ]; then
  wanted+=(nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-cccl "${libraries[@]}")
elif [ "${1:-}" = --runtime ]; then
  wanted+=("${libraries[@]}")
elif ! has_cudnn_9; then
  wanted+=(nvidia-cudnn-cu13)
fi

# A wheel's mark is its line in cuda_requirements.txt, written when all of it is unpacked.
line_of() { grep "^$1==" scripts/cuda_requirements.txt; }
missing=()
for name in "${wanted[@]}"; do
  [ "$(cat "$deps/have/$name" 2> /dev/null)" = "$(line_of "$name")" ] || missing+=("$name")
done
[ ${#missing[@]} -gt 0 ] || exit 0

[ "$(uname -sm)" = "Linux x86_64" ] ||
  fail "NVIDIA's parts are fetched for Linux on x86-64 only; install CUDA 13 and cuDNN 9 by hand"
# The largest wheels and what they unpack to: cuBLAS 0.4 + 0.6, cuDNN 0.4 + 0.4 GB, the rest 0.7.
needed=100
case " ${missing[*]} " in *nvidia-cublas*) needed=2500 ;; *nvidia-cudnn-cu13*) needed=900 ;; esac
mkdir -p "$deps"
free=$(df --output=avail -m "$deps" | tail -1)
[ "$free" -ge "$needed" ] ||
  fail "$deps needs $needed MB for ${missing[*]}, and its disk has $((free)) MB; make room"

if [ ! -x "$deps/venv/bin/pip" ]; then
  log=$(python3 -m venv "$deps/venv" 2>&1) || fail "python3 -m venv failed; install python3-venv: $log"
fi

download=$(mktemp -d "$deps/download.XXXXXX")
trap 'rm -rf "$download"' EXIT

# fetch NAME: its wheel, to $download. The file does not depend on this machine's Python.
fetch() {
  line_of "$1" > "$download/requirement.txt"
  "$deps/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-cache-dir \
    --only-binary=:all: --implementation cp --python-version 3.11 \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
    --platform manylinux2014_x86_64 --platform manylinux2010_x86_64 \
    --require-hashes -r "$download/requirement.txt" -d "$download" > "$download/log" 2>&1 || {
    cat "$download/log" >&2
    fail "cannot get $1 from PyPI; see above, and run this again"
  }
}

# unpack NAME: what compiling, linking and running need of it.
unpack() {
  python3 - "$1" "$download"/*.whl "$deps" <<'PYTHON'
import fnmatch, os, sys, zipfile

name, wheel, deps = sys.argv[1:]
CUDA = "nvidia/cu13/"
# Of each wheel: pattern of its members, the folder that they lose, the folder that they go to.
PARTS = {
    "nvidia-cudnn-frontend": [("include/*", "", "")],
    "nvidia-cuda-nvcc": [(CUDA + "bin/*", CUDA, "cuda"), (CUDA + "include/*", CUDA, "cuda")],
    "nvidia-nvvm": [(CUDA + "nvvm/*", CUDA, "cuda")],
    "nvidia-cuda-crt": [(CUDA + "include/*", CUDA, "cuda")],
    "nvidia-cuda-cccl": [(CUDA + "include/*", CUDA, "cuda")],
    "nvidia-cuda-runtime": [(CUDA + "include/*", CUDA, "cuda"), (CUDA + "lib/*", CUDA, "cuda")],
    "nvidia-cuda-nvrtc": [
        (CUDA + "lib/libnvrtc.so.*", CUDA, "cuda"),
        (CUDA + "lib/libnvrtc-builtins.so.*", CUDA, "cuda"),
    ],
    "nvidia-cublas": [
        (CUDA + "include/cublas*", CUDA, "cuda"),
        (CUDA + "lib/libcublasLt.so.*", CUDA, "cuda"),
    ],
    # Of cuDNN's libraries those for graphs: the others (adv, cnn, ops) serve its old interface.
    "nvidia-cudnn-cu13": [("nvidia/cudnn/include/*", "nvidia/cudnn/", "")]
    + [
        ("nvidia/cudnn/lib/libcudnn%s.so.*" % part, "nvidia/cudnn/", "cuda")
        for part in ("", "_graph", "_heuristic", "_engines_precompiled", "_engines_runtime_compiled")
    ],
}
with zipfile.ZipFile(wheel) as archive:
    for info in archive.infolist():
        if info.is_dir():
            continue
        path = info.filename
        target = None
        for pattern, prefix, folder in PARTS[name]:
            if fnmatch.fnmatch(path, pattern):
                target = os.path.join(deps, folder, path[len(prefix):])
        if ".dist-info/licenses/" in path:
            target = os.path.join(deps, "licenses", name, os.path.basename(path))
        if target is None:
            continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with archive.open(info) as source, open(target + ".part", "wb") as sink:
            while block := source.read(1 << 22):
                sink.write(block)
        os.chmod(target + ".part", 0o755 if info.external_attr >> 16 & 0o100 else 0o644)
        os.replace(target + ".part", target)
PYTHON
}

mkdir -p "$deps/have"
for name in "${missing[@]}"; do
  echo "setup: getting $name for .deps/"
  fetch "$name"
  unpack "$name" || fail "cannot unpack $name into $deps; see above"
  rm -f "$download"/*.whl
  line_of "$name" > "$deps/have/$name"
done

# The names that a linker and nvcc look for.
if [ -d "$deps/cuda/lib" ]; then
  ln -sfn lib "$deps/cuda/lib64"
  for library in cublasLt cudart; do
    [ ! -e "$deps/cuda/lib/lib$library.so.13" ] ||
      ln -sfn "lib$library.so.13" "$deps/cuda/lib/lib$library.so"
  done
fi
