#!/usr/bin/env bash
# tsan-works.sh - exit 0 if a program built with -fsanitize=thread starts here. With much address randomisation
# (vm.mmap_rnd_bits above 28) gcc 12's run-time library finds its memory taken and stops at once.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo 'int main() { return 0; }' >"$work/probe.cpp"
c++ -fsanitize=thread -pie -fPIE -o "$work/probe" "$work/probe.cpp"
# Randomised: once is luck.
for _ in 1 2 3 4 5 6 7 8 9 10; do "$work/probe" || exit 1; done
