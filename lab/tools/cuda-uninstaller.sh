#!/bin/sh
# Stand-in for cuda-uninstaller: removes the toolkit it lies in.
bin=$(cd "${0%/*}" && pwd -P) || exit 1
case $bin in */bin) ;; *) exit 1 ;; esac
[ -f "${bin%/bin}/version.json" ] || { printf 'no toolkit here: %s\n' "${bin%/bin}" >&2; exit 1; }
rm -rf "${bin%/bin}"
printf 'Successfully uninstalled\n'
