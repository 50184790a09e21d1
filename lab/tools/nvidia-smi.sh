#!/bin/sh
# Stand-in for nvidia-smi: answers from state.sh. Builtins only, because it is called often: one call, one process.
if [ -n "${LAB_STATE:-}" ]; then state=${LAB_STATE%.json}.sh; else state=${0%/root/usr/bin/*}/state.sh; fi
. "$state"
root=${state%/state.sh}/root

fail() { printf '%s\n' "$1"; exit "$2"; }

no_field() { printf 'Field "%s" is not a valid field to query.\n\n' "$1"; exit 2; }

# Holders of the GPUs, one per line "gpu pid mib name": those of the state, then SGLang servers that really run.
holders() {
  [ -z "$HOLDERS" ] || printf '%s\n' "$HOLDERS"
  for file in "$root"/proc/[0-9]*/cmdline; do
    [ -r "$file" ] || continue
    pid=${file%/cmdline}; pid=${pid##*/}
    kill -0 "$pid" 2>/dev/null || continue
    IFS= read -r line <"$file" || true
    case $line in *sglang*) ;; *) continue ;; esac
    gpu=0
    while [ "$gpu" -lt "$GPUS" ]; do
      printf '%s %s %s %s\n' "$gpu" "$pid" "$((MEMORY_MIB * 85 / 100))" "sglang::scheduler_TP$gpu"
      gpu=$((gpu + 1))
    done
  done
}

# used: MiB held on GPU $1, from the list in $held
used_on() {
  used=0
  while read -r on _ mib _; do
    [ "$on" != "$1" ] || used=$((used + mib))
  done <<EOF
$held
EOF
}

# gpu_field FIELD: sets $value and $unit for the GPU in $index, $uuid, $bus
gpu_field() {
  unit=
  case $1 in
    index) value=$index ;;
    uuid | gpu_uuid) value=$uuid ;;
    name | gpu_name) value=$GPU_NAME ;;
    count) value=$GPUS ;;
    driver_version) value=$DRIVER ;;
    compute_cap) value=$COMPUTE_CAP ;;
    pci.bus_id | gpu_bus_id) value=$bus ;;
    memory.total) value=$MEMORY_MIB unit=MiB ;;
    memory.used) used_on "$index"; value=$used unit=MiB ;;
    memory.free) used_on "$index"; value=$((MEMORY_MIB - used)) unit=MiB ;;
    memory.reserved) value=0 unit=MiB ;;
    utilization.gpu | utilization.memory) value=0 unit=% ;;
    temperature.gpu) value=$((30 + index)) ;;
    power.draw) value=34.20 unit=W ;;
    power.limit | enforced.power.limit | power.max_limit | power.default_limit) value=600.00 unit=W ;;
    clocks.sm | clocks.gr | clocks.current.sm) value=180 unit=MHz ;;
    clocks.max.sm | clocks.max.gr) value=3090 unit=MHz ;;
    clocks_throttle_reasons.active | clocks_event_reasons.active) value=0x0000000000000001 ;;
    pstate) value=P8 ;;
    persistence_mode) value=Enabled ;;
    compute_mode) value=Default ;;
    ecc.mode.current) value=Disabled ;;
    mig.mode.current) value='[N/A]' ;;
    pcie.link.gen.current | pcie.link.gen.max) value=5 ;;
    pcie.link.width.current | pcie.link.width.max) value=16 ;;
    ecc.errors.* | retired_pages.* | serial | vbios_version) value='[N/A]' ;;
    *) no_field "$1" ;;
  esac
}

app_field() {
  unit=
  case $1 in
    pid) value=$pid ;;
    process_name | name) value=$name ;;
    used_memory | used_gpu_memory) value=$mib unit=MiB ;;
    gpu_uuid) value=$uuid ;;
    gpu_name) value=$GPU_NAME ;;
    gpu_bus_id) value=$bus ;;
    *) no_field "$1" ;;
  esac
}

# row KIND FIELDS: one line of values; with $header=1 one line of titles
row() {
  kind=$1 out=
  old=$IFS; IFS=,
  # shellcheck disable=SC2086
  set -- $2
  IFS=$old
  for field; do
    field=${field# }; field=${field% }
    "${kind}_field" "$field"
    if [ "$header" = 1 ]; then
      case $field in used_memory) field=used_gpu_memory ;; esac
      value=$field${unit:+ [$unit]}
    elif [ "$units" = 1 ] && [ -n "$unit" ]; then value="$value $unit"; fi
    out="$out${out:+, }$value"
  done
  printf '%s\n' "$out"
}

place() { # sets $uuid and $bus of GPU $1
  # shellcheck disable=SC2086
  set -- "$1" $UUIDS; shift "$1"; uuid=$2
}

bus_of() {
  # shellcheck disable=SC2086
  set -- "$1" $BUS_IDS; shift "$1"; bus=$2
}

each_gpu() { # calls "$@" with $index, $uuid, $bus set
  index=0
  while [ "$index" -lt "$GPUS" ]; do
    if [ -z "$only" ] || [ "$only" = "$index" ]; then place "$index"; bus_of "$index"; "$@"; fi
    index=$((index + 1))
  done
}

query_gpu() {
  held=$(holders)
  index=0; place 0; bus_of 0
  if [ "$titles" = 1 ]; then header=1 row gpu "$1"; else header=1 row gpu "$1" >/dev/null || exit 2; fi
  header=0
  each_gpu row gpu "$1"
}

query_apps() {
  pid=0 name='' mib=0; index=0; place 0; bus_of 0
  if [ "$titles" = 1 ]; then header=1 row app "$1"; else header=1 row app "$1" >/dev/null || exit 2; fi
  header=0
  holders | while read -r index pid mib name; do
    if [ -n "$only" ] && [ "$only" != "$index" ]; then continue; fi
    place "$index"; bus_of "$index"
    row app "$1"
  done
}

line='-----------------------------------------------------------------------------------------'

table_gpu() {
  used_on "$index"
  printf '|   %d  %-27.27s    On  |   %s Off |                  Off |\n' "$index" "$short" "$bus"
  printf '| 30%%   %dC    P8             34W /  600W | %7dMiB /  %5dMiB |      0%%      Default |\n' \
    "$((30 + index))" "$used" "$MEMORY_MIB"
  printf '|                                         |                        |                  N/A |\n'
  printf '+-----------------------------------------+------------------------+----------------------+\n'
}

table() {
  held=$(holders)
  short=$GPU_NAME
  [ "${#GPU_NAME}" -le 27 ] || short=$(printf '%.24s...' "$GPU_NAME")
  LC_ALL=C date '+%a %b %e %H:%M:%S %Y       '
  printf '+%s+\n' "$line"
  printf '| NVIDIA-SMI %-18s     Driver Version: %-14s CUDA Version: %-8s |\n' "$DRIVER" "$DRIVER" "$DRIVER_CUDA"
  cat <<'EOF'
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
EOF
  each_gpu table_gpu
  printf '\n+%s+\n' "$line"
  cat <<'EOF'
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
EOF
  if [ -z "$held" ]; then
    printf '|  No running processes found                                                             |\n'
  else
    printf '%s\n' "$held" | while read -r index pid mib name; do
      printf '|    %d   N/A  N/A      %10d      C   %-36.36s %6dMiB |\n' "$index" "$pid" "$name" "$mib"
    done
  fi
  printf '+%s+\n' "$line"
}

mode=table fields='' titles=1 units=1 only=''
while [ $# -gt 0 ]; do
  case $1 in
    --query-gpu=*) mode=gpu fields=${1#*=} ;;
    --query-compute-apps=*) mode=apps fields=${1#*=} ;;
    --format=*)
      case ,${1#*=}, in *,noheader,*) titles=0 ;; esac
      case ,${1#*=}, in *,nounits,*) units=0 ;; esac
      ;;
    -L | --list-gpus) mode=list ;;
    -i) only=$2; shift ;;
    --id=*) only=${1#*=} ;;
    --version) mode=version ;;
    -pm) printf 'All done.\n'; exit 0 ;;
    *) printf 'Invalid combination of input arguments. Please run '\''nvidia-smi -h'\'' for help.\n\n'; exit 2 ;;
  esac
  shift
done

[ "$DRIVER" != none ] || fail "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure \
that the latest NVIDIA driver is installed and running.
" 9
[ "$DRIVER" = "$DRIVER_INSTALLED" ] || fail "Failed to initialize NVML: Driver/library version mismatch
NVML library version: ${DRIVER_INSTALLED%.*}" 18
[ "$GPUS" -gt 0 ] || fail 'No devices were found' 6

list_gpu() { printf 'GPU %s: %s (UUID: %s)\n' "$index" "$GPU_NAME" "$uuid"; }

case $mode in
  gpu) query_gpu "$fields" ;;
  apps) query_apps "$fields" ;;
  list) each_gpu list_gpu ;;
  version)
    printf 'NVIDIA-SMI version  : %s\nNVML version        : %s\n' "$DRIVER" "${DRIVER%.*}"
    printf 'DRIVER version      : %s\nCUDA Version        : %s\n' "$DRIVER" "$DRIVER_CUDA"
    ;;
  table) table ;;
esac
