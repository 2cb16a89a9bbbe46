#!/usr/bin/env bash
# probe-cpu.sh WORKDIR - prints one line "GGML_<FAMILY>=ON|OFF" for each x86 instruction family that llama.cpp can use.
#
# Each family's small program (cpu_probe.c) is compiled once into WORKDIR and run every time: what crashes or miscounts is OFF.
# A family that needs another (AVX2 needs AVX) is OFF when that one is. AMX is never offered: it does not help the
# few-token decodes that verification is made of, and some virtual machines announce it without running it.
# On other architectures it prints nothing: llama.cpp's portable defaults stand.
# Cost: about 4 s the first time, then 0.1 s.
set -euo pipefail

source_file=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/cpu_probe.c
workdir=$1/$(cksum <"$source_file" | cut -d ' ' -f 1) # a changed probe is compiled anew
case $(uname -m) in x86_64 | amd64) ;; *) exit 0 ;; esac

if ! command -v "${CC:-cc}" >/dev/null; then
  echo "probe-cpu.sh: there is no C compiler (${CC:-cc}) to probe with" >&2
  exit 1
fi
mkdir -p "$workdir"
# A crash of a probe is an expected answer: no core files, no shell message about it.
ulimit -c 0
declare -A found

runs() { # FAMILY SWITCHES...: compiles (once) and runs the family's program
  local family=$1 program="$workdir/$1"
  shift
  if [[ ! -x $program ]]; then
    "${CC:-cc}" -O1 "-DPROBE_$family" "$@" -o "$program.new" "$source_file" 2>"$program.log" || return 1
    mv "$program.new" "$program"
  fi
  ("$program") >/dev/null 2>&1
}

probe() { # FAMILY NEEDED_FAMILIES SWITCHES...
  local family=$1 need answer=OFF
  for need in $2; do
    if [[ ${found[$need]} == OFF ]]; then
      found[$family]=OFF
      echo "GGML_$family=OFF"
      return
    fi
  done
  shift 2
  if runs "$family" "$@" 2>/dev/null; then answer=ON; fi
  found[$family]=$answer
  echo "GGML_$family=$answer"
}

avx512=(-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512cd)
probe SSE42 "" -msse4.2 -mpopcnt
probe AVX "SSE42" -mavx
probe F16C "AVX" -mavx -mf16c
probe FMA "AVX" -mavx -mfma
probe BMI2 "AVX" -mbmi2
probe AVX2 "AVX F16C FMA" -mavx2
probe AVX512 "AVX2 BMI2" "${avx512[@]}"
probe AVX512_VBMI "AVX512" "${avx512[@]}" -mavx512vbmi
probe AVX512_VNNI "AVX512" "${avx512[@]}" -mavx512vnni
probe AVX512_BF16 "AVX512" "${avx512[@]}" -mavx512bf16
# The 256-bit form is for CPUs without AVX-512; beside AVX512_VNNI it adds nothing.
if [[ ${found[AVX512_VNNI]} == ON ]]; then
  echo "GGML_AVX_VNNI=OFF"
else
  probe AVX_VNNI "AVX2" -mavx2 -mavxvnni
fi
