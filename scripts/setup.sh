#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that Headway is built with, those that are missing only.
#   --all            also Open MPI, for ranks in processes, and what only the checks need: the
#                    fuzzers' compiler, the formatter, and a stand-in for an older processor
#   --cuda           also what a build for NVIDIA GPUs needs (see setup_cuda.sh)
#   --cuda-runtime   and the libraries that its package ships
set -euo pipefail

packages=(
  g++ cmake ninja-build ccache pkg-config make
  libfmt-dev nlohmann-json3-dev libcli11-dev libpcre2-dev libutf8proc-dev libxxhash-dev
  libhwy-dev liburing-dev
  libgtest-dev libgmock-dev libbenchmark-dev
)
case "${1:-}" in
  "") ;;
  --all) packages+=(clang clang-format git libopenmpi-dev openmpi-bin qemu-user) ;;
  --cuda | --cuda-runtime) packages+=(python3-venv) ;;
  *)
    echo "setup: unknown option '$1'; there are --all, --cuda and --cuda-runtime" >&2
    exit 2
    ;;
esac

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' ||
    missing+=("$package")
done

sudo=()
[ "$(id -u)" = 0 ] || sudo=(sudo)
install() {
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" \
    > /tmp/headway-setup.log 2>&1 || { cat /tmp/headway-setup.log >&2; return 1; }
}

if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get > /dev/null || {
    echo "setup: this machine has no apt-get; install these yourself: ${missing[*]}" >&2
    exit 1
  }
  echo "setup: installing ${missing[*]}"
  "${sudo[@]}" apt-get update -qq
  install "${missing[@]}"
fi

# clang's sanitizer and fuzzer runtimes are packaged by its version.
if [ "${1:-}" = "--all" ]; then
  version=$(clang --version | sed -n 's/.*version \([0-9]*\).*/\1/p' | head -1)
  runtime="libclang-rt-$version-dev"
  dpkg-query -W -f '${Status}' "$runtime" 2>/dev/null | grep -q '^install ok installed$' ||
    { apt-cache show "$runtime" > /dev/null 2>&1 || "${sudo[@]}" apt-get update -qq; install "$runtime"; }
fi

case "${1:-}" in
  --cuda) "$(dirname "$0")/setup_cuda.sh" ;;
  --cuda-runtime) "$(dirname "$0")/setup_cuda.sh" --runtime ;;
esac
