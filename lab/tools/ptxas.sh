#!/bin/sh
# Stand-in for ptxas @NVCC@: tells its version.
case ${1:-} in
  --version | -V)
    printf 'ptxas: NVIDIA (R) Ptx optimizing assembler\nCopyright (c) 2005-2025 NVIDIA Corporation\nBuilt on %s\n' '@BUILT@'
    printf 'Cuda compilation tools, release %s, V%s\nBuild %s\n' '@RELEASE@' '@NVCC@' '@BUILD@'
    ;;
  *) printf 'ptxas fatal   : the stand-in assembles nothing\n' >&2; exit 1 ;;
esac
