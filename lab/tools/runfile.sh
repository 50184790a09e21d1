#!/bin/sh
# SIMULATED: a self-extracting archive that stands in for the CUDA @VERSION@ runfile. After the last line of this
# header come a tar.gz of @PAYLOAD@ bytes and padding that no archiver can shrink.
LC_ALL=C; export LC_ALL
header_lines=@LINES@
body_bytes=@BODY@
payload_bytes=@PAYLOAD@
body_md5=@MD5@

usage() {
  cat <<EOF
Options:
  --silent            install without a menu; accepts the EULA
  --toolkit           install the toolkit
  --toolkitpath=DIR   where to
  --tmpdir=DIR        where to unpack
  --override          skip the checks of compiler and of installed toolkits
  --no-man-page       leave the manual pages out
  --check             verify the archive and stop
  --noexec            unpack and stop; with --target DIR, there
  --help              this text
EOF
}

header_bytes() { head -n "$header_lines" "$0" | wc -c; }

body() { tail -c "+$(($(header_bytes) + 1))" "$0"; }

verify() { # $1 = 1: say so
  [ "$1" = 0 ] || printf 'Verifying archive integrity... %s does not contain an embedded SHA256 checksum.\n' "${0##*/}"
  size=$(wc -c <"$0")
  if [ $((size - $(header_bytes))) -ne "$body_bytes" ]; then
    [ "$1" = 1 ] || printf 'Verifying archive integrity... '
    printf 'Unexpected archive size.\n'
    exit 2
  fi
  sum=$(body | md5sum)
  sum=${sum%% *}
  if [ "$sum" != "$body_md5" ]; then
    printf 'Error in MD5 checksums: %s is different from %s\n' "$sum" "$body_md5"
    exit 2
  fi
  [ "$1" = 0 ] || printf '     0%%    32%%    65%%    98%%  100%%   MD5 checksums are OK. All good.\n'
}

unpack() { body | head -c "$payload_bytes" | (cd "$1" && tar xzf -); }

no_space() {
  printf 'Extraction failed.\nEnsure there is enough space in %s and that the installation package is not corrupt\n' "$1"
  printf 'Signal caught, cleaning up\n'
  exit 15
}

check=0 noexec=0 silent=0 toolkit=0 keep=0 target='' tmp=${TMPDIR:-/tmp} path=''
while [ $# -gt 0 ]; do
  case $1 in
    --check) check=1 ;;
    --noexec) noexec=1 ;;
    --target) target=${2:-}; shift ;;
    --silent) silent=1 ;;
    --toolkit) toolkit=1 ;;
    --toolkitpath=*) path=${1#*=} ;;
    --tmpdir=*) tmp=${1#*=} ;;
    --keep) keep=1 ;;
    --override | --no-man-page | --nox11 | --nodiskspace | --quiet | --no-opengl-libs | --no-drm) ;;
    --help | -h) usage; exit 0 ;;
    *) printf 'Unrecognized flag : %s\n' "$1" >&2; usage >&2; exit 1 ;;
  esac
  shift
done

if [ "$check" = 1 ]; then verify 1; exit 0; fi
verify 0

TMP_FREE_KIB=$((body_bytes)) TMP_OPTIONS=rw
if [ -n "${LAB_STATE:-}" ]; then . "${LAB_STATE%.json}.sh"; fi
if [ -n "$target" ]; then keep=1; dir=$target; else dir=$tmp/selfgz$$; fi
mkdir -p "$tmp" 2>/dev/null || true
if ! mkdir "$dir" 2>/dev/null && [ ! -d "$dir" ]; then
  printf 'mkdir: cannot create directory ‘%s’: No such file or directory\n' "$dir" >&2
  printf 'Cannot create target directory %s\nYou should try option --target dir\n' "$dir" >&2
  exit 1
fi
if [ "$keep" = 0 ]; then
  trap 'rm -rf "$dir"' EXIT
  trap 'exit 143' HUP INT TERM
fi
[ $((body_bytes * 2 / 1024)) -le "$TMP_FREE_KIB" ] || no_space "$tmp"
unpack "$dir" || no_space "$tmp"
if [ "$noexec" = 1 ]; then exit 0; fi
case $TMP_OPTIONS in
  *noexec*) printf '%s: 1: eval: ./cuda-installer: Permission denied\n' "${0##*/}" >&2; exit 126 ;;
esac
if [ "$silent" = 0 ]; then
  printf 'Error opening terminal: the menu is not simulated, use --silent.\n' >&2
  exit 1
fi
if [ "$toolkit" = 0 ]; then
  printf 'With --silent at least one of --driver, --uninstall and --toolkit is needed.\n' >&2
  exit 1
fi
(cd "$dir" && sh ./cuda-installer "$path")
exit $?
