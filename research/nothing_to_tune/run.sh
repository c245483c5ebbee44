#!/bin/sh
# research/nothing_to_tune/run.sh SCRIPT WORDS: one script of this notebook, on one thread; data sets through CLIPWISE_DATA
here="$(cd "$(dirname "$0")" && pwd)"
cd "$here/../.." && PYTHONPATH="$PWD:$here" OMP_NUM_THREADS=1 exec ${PYTHON:-python} "$@"
