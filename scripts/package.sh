#!/usr/bin/env bash
# package.sh BUILD: packs the program of a build folder, the libraries that it needs beside it (glibc
# and the GPU's driver apart), the demo model and the licences of all that into
# headway-VERSION-linux-x86_64-KIND.tar.gz, and tries the archive out in another folder. `make
# package` makes BUILD: an installed program of it finds its libraries in $ORIGIN/../lib.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
fail() {
  echo "package: $1" >&2
  exit 1
}
cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }
kind=cpu
case "$(cached HEADWAY_CUDA)" in 1 | ON) kind=cuda13 ;; esac
name=headway-$(cached CMAKE_PROJECT_VERSION)-$(uname -s | tr A-Z a-z)-$(uname -m)-$kind
work=$(mktemp -d "$build/package.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/$name

cmake --install "$build" --component program --strip --prefix "$PWD/$root" > "$work/log" || {
  cat "$work/log" >&2
  fail "cmake --install $build failed; see above"
}
mkdir -p "$root/lib" "$root/models" "$root/share/doc/headway"
cp -r models/demo "$root/models/"
cp -r examples "$root/"
cp LICENSE "$root/share/doc/headway/"

if [ "$kind" = cuda13 ]; then
  # NVIDIA's licences name what may be passed on with a program; these files are among it. cuDNN's
  # frontend, in the program, loads the CUDA runtime by name; cuDNN's and cuBLASLt's compiler is NVRTC.
  for library in libcublasLt.so.13 libcudart.so.13 libnvrtc.so.13 libnvrtc-builtins.so.13.0 \
    libcudnn.so.9 libcudnn_graph.so.9 libcudnn_heuristic.so.9 \
    libcudnn_engines_precompiled.so.9 libcudnn_engines_runtime_compiled.so.9; do
    cp -L ".deps/cuda/lib/$library" "$root/lib/" || fail "run scripts/setup.sh --cuda-runtime first"
  done
  for part in cublas cuda-runtime cuda-nvrtc cudnn-cu13 cudnn-frontend; do
    cp -r ".deps/licenses/nvidia-$part" "$root/share/doc/"
  done
fi

# Debian's licence of the package that a file is from.
add_licence() {
  local package
  package=$(dpkg-query -S "$1" 2> /dev/null || dpkg-query -S "${1#/usr}" 2> /dev/null) ||
    fail "no package owns $1: its licence is not known"
  package=${package%%:*}
  mkdir -p "$root/share/doc/$package"
  cp -L "/usr/share/doc/$package/copyright" "$root/share/doc/$package/"
}
for header in /usr/include/nlohmann/json.hpp /usr/include/CLI/CLI.hpp; do add_licence "$header"; done

# glibc, which the machine brings.
is_system() {
  case "$1" in
    libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | ld-linux* | linux-vdso*) ;;
    *) return 1 ;;
  esac
}
# NAME => PATH of what the files of the folder need. ldd names also what a library of a library needs.
needs() {
  find "$1/bin" "$1/lib" -type f -exec env -u LD_LIBRARY_PATH ldd {} + 2> /dev/null |
    awk '$2 == "=>" { print $1, ($3 == "not" ? "-" : $3) }' | sort -u
}
while read -r library path; do
  is_system "$library" && continue
  [ ! -e "$root/lib/$library" ] || continue
  [ "$path" != - ] || fail "$library is needed and not on this machine"
  cp -L "$path" "$root/lib/$library"
  add_licence "$(readlink -f "$path")"
done < <(needs "$root")

# Texts that those licences refer to.
mkdir -p "$root/share/doc/common-licenses"
grep -rhoE '/usr/share/common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]' "$root/share/doc" | sort -u |
  xargs cp -Lt "$root/share/doc/common-licenses"

cat > "$root/README.txt" << 'README'
Headway runs language models over contexts that do not fit in fast memory. Try it in this folder, with the model that is included:
  bin/headway run models/demo --file examples/document.txt --ask "What is the special magic number for lonely-castle mentioned in the text?" --kv-memory 8MiB --host-memory 256MiB
GLIBC_LINE Licences of what is in lib/ are in share/doc/.
README
glibc=$(find "$root/bin" "$root/lib" -type f -exec objdump -T {} + 2> /dev/null |
  grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -1)
line="It needs Linux on $(uname -m) with glibc ${glibc#GLIBC_} or newer"
[ "$kind" = cpu ] || line+=", and for --device cuda an NVIDIA GPU of compute capability 8.0 or higher with a driver for CUDA 13"
sed -i "s/GLIBC_LINE/$line./" "$root/README.txt"

tar --sort=name --owner=0 --group=0 --numeric-owner -C "$work" -c "$name" | gzip -6 > "$work/archive"

# The archive as a user gets it: another folder, no environment.
mkdir "$work/try"
tar -C "$work/try" -xzf "$work/archive"
tried=$(readlink -f "$work/try/$name")
env -i "$tried/bin/headway" --version > /dev/null || fail "the packed program does not start"
while read -r library _; do
  is_system "$library" || [ -e "$tried/lib/$library" ] || fail "$library is not in the archive"
done < <(needs "$tried")
ldd "$tried/bin/headway" | awk '$2 == "=>" { print $1, $3 }' | while read -r library path; do
  is_system "$library" || [ "$(readlink -f "$path")" = "$tried/lib/$library" ] ||
    fail "$library is taken from $path, not from the archive"
done
mv "$work/archive" "$name.tar.gz"
echo "$name.tar.gz: $(du -h "$name.tar.gz" | cut -f1), unpacked $(du -sh "$root" | cut -f1)"
