#!/bin/sh
# Stand-in for getconf where the machine has none; the version is that of the C library that runs the lab.
case ${1:-} in
  GNU_LIBC_VERSION) printf 'glibc %s\n' '@GLIBC@' ;;
  LONG_BIT) printf '64\n' ;;
  _NPROCESSORS_ONLN) nproc ;;
  *) printf 'getconf: unrecognized variable %s\n' "${1:-}" >&2; exit 2 ;;
esac
