#!/usr/bin/env bash
# The base and the head of a pull request, each checked out in a folder of its own: OUT/base and OUT/head.
# In: BASE, HEAD (commits), OUT (a folder). The checkout must have both: actions/checkout with fetch-depth: 0.
set -euo pipefail
mkdir -p "$OUT"
for side in base head; do
  commit=$BASE
  [ "$side" = head ] && commit=$HEAD
  if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
    echo "loaderbench: the $side commit '$commit' is not in this checkout: give actions/checkout 'fetch-depth: 0'" >&2
    exit 2
  fi
  git worktree add --force --detach "$OUT/$side" "$commit" >/dev/null 2>&1
done
