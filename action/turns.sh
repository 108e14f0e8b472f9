#!/usr/bin/env bash
# The action's measuring step: turns.py with the inputs, and its answer as the step's output.
set -uo pipefail
python "$GITHUB_ACTION_PATH/action/turns.py" --base "$OUT/sides/base" --head "$OUT/sides/head" --out "$OUT" \
  --command "$COMMAND" --setup "$SETUP" --rounds "$ROUNDS" --limit "$LIMIT"
code=$?
slower=$(python -c 'import json, sys; print({True: "true", False: "false"}.get(json.load(open(sys.argv[1]))["regression"], "unknown"))' "$OUT/comparison.json" 2>/dev/null)
echo "regression=${slower:-unknown}" >> "${GITHUB_OUTPUT:-/dev/null}"
exit "$code"
