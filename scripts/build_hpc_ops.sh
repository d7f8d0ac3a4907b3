#!/usr/bin/env bash
# Builds what hpc_ops_moe needs of Tencent's hpc-ops (github.com/Tencent/hpc-ops) for Hopper: a package `hpc` with its
# fused mixture of experts, from a checkout's sources and the CUTLASS beside them, with the flags of its CMakeLists.txt.
# Needs nvcc, a C++ compiler and a Python with torch; $PYTHON names that, $JOBS how many files compile at once.
#
#   scripts/build_hpc_ops.sh CHECKOUT DIRECTORY && export PYTHONPATH=DIRECTORY
set -euo pipefail
[ $# -eq 2 ] && [ -f "$1/src/fuse_moe/entry.cc" ] || { echo "usage: $0 CHECKOUT-OF-hpc-ops DIRECTORY" >&2; exit 1; }
checkout=$(realpath "$1")
package=$(realpath -m "$2")/hpc
python=${PYTHON:-python3}
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
cuda=$(dirname "$(dirname "$(realpath "$nvcc")")")
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
cd "$checkout"
commit=${HPC_COMMIT:-$(git rev-parse --short=7 HEAD 2>/dev/null || echo unknown)}

read -r torch abi < <("$python" -c 'import os, torch; print(os.path.dirname(torch.__file__), int(torch._C._GLIBCXX_USE_CXX11_ABI))')
headers="-I. -I3rd/cutlass/include -isystem $torch/include -isystem $torch/include/torch/csrc/api/include -isystem $cuda/include"
common="-O3 -std=c++17 -fPIC -fvisibility=hidden -fvisibility-inlines-hidden -DNDEBUG -D_GLIBCXX_USE_CXX11_ABI=$abi -DHPC_VERSION_STR=\"$commit\" -DHPC_GIT_HASH_STR=\"$commit\""
device="-gencode arch=compute_90a,code=sm_90a --expt-relaxed-constexpr -DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED"
device+=" -O3 -std=c++17 -Xcompiler -fPIC,-fvisibility=hidden,-fvisibility-inlines-hidden -DNDEBUG -DHPC_VERSION_STR=\"$commit\" -DHPC_GIT_HASH_STR=\"$commit\""
export nvcc headers common device objects

compile() {
  local object=$objects/${1//\//_}.o
  case $1 in
    *.cu) "$nvcc" $device $headers -c "$1" -o "$object" ;;
    *) "${CXX:-g++}" $common -w $headers -c "$1" -o "$object" ;;
  esac
}
export -f compile

# The group GEMMs take longest, so they begin; the other operators of the library are left out.
sources="src/group_gemm/group_gemm_blockwise_fp8.cu src/group_gemm/group_gemm_pertensor_fp8.cu
  $(ls src/group_gemm/cp_async/*.cu src/fuse_moe/*.cu src/fuse_moe/cp_async/*.cu) src/activation/activation.cu
  src/fuse_moe/entry.cc src/utils/utils.cc src/C/C.cc src/C/version.cc src/C/built_json.cu"
echo $sources | tr ' ' '\n' | xargs -P "${JOBS:-$(nproc)}" -I{} bash -c 'compile {}'

rm -rf "$package"
mkdir -p "$package"
echo '{ local: *; };' > "$objects/map" # torch carries another CUTLASS: neither may bind to the other's symbols
"${CXX:-g++}" -shared -Wl,--version-script="$objects/map" -Wl,-Bsymbolic "$objects"/*.o -o "$package/_C.abi3.so" -L"$torch/lib" -L"$cuda/lib64" -L"$cuda/lib64/stubs" \
  -Wl,-rpath,"$torch/lib" -lc10 -lc10_cuda -ltorch -ltorch_cpu -ltorch_cuda -lcudart -lcuda
cp hpc/__init__.py hpc/fuse_moe.py "$package/"
echo "__version__ = \"$commit\"" > "$package/version.py" # the row's environment names it
echo "hpc $commit lies in $(dirname "$package"): export PYTHONPATH=$(dirname "$package")"
