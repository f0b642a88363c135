#!/usr/bin/env bash
# Run the GPU tests and benchmark. Needs a Python whose torch supports the GPU.
#
#   bench/gpu/run.sh [WHEELS]
#
# WHEELS is a folder of wheels for packages that this Python lacks (no network is used). They are
# installed into a temporary folder; the environment is not changed. Download them for that Python:
#   pip download --no-deps --only-binary=:all: --dest WHEELS tyro typeguard docstring-parser simplejpeg
# Without a GPU it prints a message and exits with 0. PYTHON is the interpreter; BENCH_ARGS are
# passed to the benchmark.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  echo "torch of $python finds no GPU: the GPU tests and benchmark are skipped."
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
    raise SystemExit(f"missing packages: {', '.join(missing)}; pass WHEELS: bench/gpu/run.sh WHEELS")
PYTHON
"$python" -m pytest tests/gpu -q -W ignore::pytest.PytestConfigWarning ||
  echo "The GPU tests failed; the benchmark runs anyway."
# shellcheck disable=SC2086
"$python" -m bench.gpu.climb ${BENCH_ARGS:-}
