#!/usr/bin/env bash
# The GPU's tests and benchmark, on a machine whose Python has a torch that sees it.
#
#   bench/gpu/run.sh [WHEELS]
#
# WHEELS is a folder of the packages that this Python lacks (no network is asked for). They go into
# a temporary folder; nothing that is installed changes. Get them beforehand, for that Python, by
#   pip download --no-deps --only-binary=:all: --dest WHEELS tyro typeguard docstring-parser simplejpeg
# Without a GPU it says so and ends well. PYTHON names the interpreter; BENCH_ARGS go to the bench.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  echo "There is no GPU that $python sees through torch: the GPU tests and benchmark are skipped."
  exit 0
fi
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
if [ $# -gt 0 ]; then
  "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$1"/*.whl
fi
export PYTHONPATH="$site:$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
"$python" - <<'PYTHON'
import importlib.util

names = ("timm", "numpy", "pyarrow", "PIL", "simplejpeg", "safetensors", "psutil", "yaml", "tyro",
         "rich", "jinja2", "pytest")
missing = [name for name in names if importlib.util.find_spec(name) is None]
if missing:
    raise SystemExit(f"missing here: {', '.join(missing)}; give their wheels: bench/gpu/run.sh WHEELS")
PYTHON
"$python" -m pytest tests/gpu -q -W ignore::pytest.PytestConfigWarning ||
  echo "The GPU tests failed; the bench goes on."
# shellcheck disable=SC2086
"$python" -m bench.gpu.climb ${BENCH_ARGS:-}
