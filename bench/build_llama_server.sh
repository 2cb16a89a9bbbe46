#!/usr/bin/env bash
# build_llama_server.sh - llama-server of the pinned llama.cpp, for bench/serve_bench.py to measure beside.
#
#   bench/build_llama_server.sh FOLDER     leaves FOLDER/llama-server (FOLDER outside the tree, or git-ignored)
#
# It is built from the archive that ./dev setup keeps and for the same CPU instructions as the llama.cpp within drift: a comparison in
# which one side has AVX-512 and the other not would say nothing. Without web UI and TLS; it fetches nothing. DRIFT_DEPS: as for ./dev.
# JOBS: compilers at once (default 1). About 10 minutes on one core, without a compiler cache.
set -euo pipefail

[[ $# == 1 ]] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
deps=${DRIFT_DEPS:-$root/.deps}
pin() { awk -v key="$1" '$1 == key { print $2 }' "$root/tools/llama-pin.txt"; }
archive=$deps/$(pin package)-$(pin version).tar.gz
flags=$deps/llama/drift-cpu-flags.txt
[[ -f $archive && -f $flags ]] || { echo "build_llama_server: $archive or $flags is missing; call ./dev setup first" >&2; exit 3; }
sha256sum --status -c - <<<"$(pin sha256)  $archive" || { echo "build_llama_server: $archive has the wrong sha256" >&2; exit 4; }

mkdir -p "$1"
folder=$(cd "$1" && pwd)
rm -rf "$folder/source"
mkdir "$folder/source"
tar -xzf "$archive" -C "$folder/source" --strip-components=3 --wildcards '*/vendor/llama.cpp/*'
mapfile -t cpu < <(sed 's/^/-D/' "$flags")
# The server is a "tool" of llama.cpp, so both are on. USE_PREBUILT_UI would fetch a web page while building.
cmake -S "$folder/source" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
  -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
  -DLLAMA_BUILD_COMMIT="$(pin commit)" -DLLAMA_BUILD_NUMBER=0 \
  -DLLAMA_BUILD_COMMON=ON -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
  -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF -DGGML_NATIVE=OFF "${cpu[@]}"
cmake --build "$folder/build" -j "${JOBS:-1}" --target llama-server
ln -sf build/bin/llama-server "$folder/llama-server"
echo "$folder/llama-server"
