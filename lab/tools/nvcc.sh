#!/bin/sh
# Stand-in for nvcc @NVCC@: knows its architectures, wants its parts, and writes a small file instead of code.
here=${0%/*}
known=' @ARCHS@ '

fatal() { printf 'nvcc fatal   : %s\n' "$1" >&2; exit 1; }

arch_known() { # sm_N, compute_N or lto_N, with or without a suffix letter
  case $known in *" sm_${1##*_} "*) ;; *) fatal "Unsupported gpu architecture '$1'" ;; esac
}

version() {
  printf 'nvcc: NVIDIA (R) Cuda compiler driver\nCopyright (c) 2005-2025 NVIDIA Corporation\nBuilt on %s\n' '@BUILT@'
  printf 'Cuda compilation tools, release %s, V%s\nBuild %s\n' '@RELEASE@' '@NVCC@' '@BUILD@'
}

out='' input='' arch=@DEFAULT@ kind=exe
while [ $# -gt 0 ]; do
  case $1 in
    --version | -V) version; exit 0 ;;
    --list-gpu-code) for arch in $known; do case $arch in *[a-z]) ;; *) printf '%s\n' "$arch" ;; esac; done; exit 0 ;;
    --list-gpu-arch) for arch in $known; do case $arch in *[a-z]) ;; *) printf 'compute_%s\n' "${arch#sm_}" ;; esac; done; exit 0 ;;
    -arch=* | --gpu-architecture=*) arch=${1#*=}; arch_known "$arch" ;;
    -arch | --gpu-architecture) arch=${2:-}; arch_known "$arch"; shift ;;
    -gencode=* | --generate-code=*) arch=${1##*code=}; arch_known "$arch" ;;
    -gencode | --generate-code) arch=${2##*code=}; arch_known "$arch"; shift ;;
    -cubin | --cubin) kind=cubin ;;
    -ptx | --ptx) kind=ptx ;;
    -c | --compile) kind=o ;;
    -fatbin | --fatbin) kind=fatbin ;;
    -o | --output-file) out=${2:-}; shift ;;
    -O* | -std=* | -I* | -D* | -L* | -l* | -Xcompiler=* | -lineinfo | -shared | -w | -v) ;;
    -Xcompiler | -Xptxas | -I | -D | -L) shift ;;
    -*) fatal "Unknown option '$1'" ;;
    *) input=$1 ;;
  esac
  shift
done
[ -n "$input" ] || fatal 'No input files specified; use option --help for more information'
case $input in *.cu) ;; *) fatal "Don't know what to do with '$input'" ;; esac
[ -x "$here/../nvvm/bin/cicc" ] || { printf 'sh: 1: cicc: not found\n' >&2; exit 127; }
[ -x "$here/ptxas" ] || { printf 'sh: 1: ptxas: not found\n' >&2; exit 127; }
if [ ! -r "$input" ]; then
  printf 'cc1plus: fatal error: %s: No such file or directory\ncompilation terminated.\n' "$input" >&2
  exit 1
fi
found=0
while IFS= read -r line || [ -n "$line" ]; do
  case $line in *__global__*) found=1 ;; esac
done <"$input"
if [ "$found" = 0 ]; then
  printf '%s(1): error: the stand-in compiles kernels only: no __global__ in this file\n' "$input" >&2
  exit 2
fi
if [ -z "$out" ]; then
  name=${input##*/}
  if [ "$kind" = exe ]; then out=a.out; else out=${name%.cu}.$kind; fi
fi
case $kind in ptx) printf '//\n// SIMULATED by nvcc @NVCC@\n.version 9.0\n.target %s\n' "$arch" >"$out" ;;
  *) printf '\177ELF SIMULATED %s of %s by nvcc @NVCC@\n' "$kind" "$arch" >"$out" ;;
esac
