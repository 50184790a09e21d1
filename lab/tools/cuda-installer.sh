#!/bin/sh
# Stand-in for the installer inside the runfile: $1 is the folder of the toolkit. Silent until the summary.
version='@VERSION@' release='@RELEASE@' driver_floor='@FLOOR@'
path=${1:-${LAB_ROOT:-}/usr/local/cuda-$release}
INSTALLER_SECONDS=0 INSTALLER_INSTALLS=all INSTALLER_RC=0 INSTALLER_REPOINTS_LINK=0
if [ -n "${LAB_STATE:-}" ]; then
  . "${LAB_STATE%.json}.sh"
  printf '%s pid %s cuda %s into %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$$" "$version" "$path" \
    >>"${LAB_STATE%/*}/installs.log"
fi
if [ -n "${LAB_ROOT:-}" ]; then logs=$LAB_ROOT/var/log; else logs=${TMPDIR:-/tmp}; fi
mkdir -p "$logs"
log=$logs/cuda-installer.log

say() { printf '[%s]: %s\n' "$1" "$2" >>"$log"; }

: >"$log"
say INFO 'Driver not installed.'
say INFO 'Initializing menu'
say INFO 'Setup complete'
say INFO "Installing: CUDA Toolkit $release"
if [ "$INSTALLER_RC" != 0 ]; then
  say ERROR "boost::filesystem::copy_file: No space left on device: \"./builds/toolkit\", \"$path\""
  printf ' Installation failed. See log at %s for details.\n' "$log"
  exit "$INSTALLER_RC"
fi
if [ "$INSTALLER_INSTALLS" = all ]; then
  mkdir -p "$path" || { printf ' Installation failed. See log at %s for details.\n' "$log"; exit 1; }
  cp -R builds/early/. "$path"/
  sleep "$INSTALLER_SECONDS"
  cp -R builds/late/. "$path"/
  if [ "$INSTALLER_REPOINTS_LINK" = 1 ] && [ -n "${LAB_ROOT:-}" ]; then
    ln -sfn "$path" "$LAB_ROOT/usr/local/cuda"
  fi
else
  sleep "$INSTALLER_SECONDS"
fi
say INFO 'Complete'

cat <<EOF
===========
= Summary =
===========

Driver:   Not Selected
Toolkit:  Installed in $path/

Please make sure that
 -   PATH includes $path/bin
 -   LD_LIBRARY_PATH includes $path/lib64, or, add $path/lib64 to /etc/ld.so.conf and run ldconfig as root

To uninstall the CUDA Toolkit, run cuda-uninstaller in $path/bin
***WARNING: Incomplete installation! This installation did not install the CUDA Driver. A driver of version at least $driver_floor is required for CUDA $release functionality to work.
To install the driver using this installer, run the following command, replacing <CudaInstaller> with the name of this run file:
    sudo <CudaInstaller>.run --silent --driver

Logfile is $log
EOF
