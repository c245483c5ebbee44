#!/bin/sh
# the rule of 2026-11-18, second version: v2.sh TASK SEEDS 'k=v ...' eps...
here="$(cd "$(dirname "$0")" && pwd)"; t=$1; s=$2; extra=$3; shift 3
exec "$here/run.sh" "$here/auto.py" "$t" "$s" "m=0.25 rho=6 cut=3 centre=1 factor=0.6 tau=0.01 score=0.01 rel=1 gamma=2 $extra" "$@"
