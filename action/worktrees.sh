#!/usr/bin/env bash
# The base and the head of a pull request, each checked out in a folder of its own: OUT/base and OUT/head.
# In: BASE, HEAD (commits), OUT (a folder). A commit that the checkout lacks is fetched. Without a base, as in the first
# push of a branch, there is nothing to compare: the action's other steps are left out, and the job goes on.
set -euo pipefail
if [ -z "${BASE//0/}" ]; then
  said="loaderbench: nothing is compared: this event has no base; name one with the input 'base'"
  echo "$said" | tee -a "${GITHUB_STEP_SUMMARY:-/dev/null}"
  echo "measure=false" >> "${GITHUB_OUTPUT:-/dev/null}"
  exit 0
fi
mkdir -p "$OUT"
for side in base head; do
  commit=$BASE
  [ "$side" = head ] && commit=$HEAD
  if ! git cat-file -e "$commit^{commit}" 2>/dev/null && ! git fetch --quiet --depth 1 origin "$commit" 2>/dev/null; then
    echo "loaderbench: the $side commit '$commit' is not in this checkout: give actions/checkout 'fetch-depth: 0'" >&2
    exit 2
  fi
  git worktree add --force --detach "$OUT/$side" "$commit" >/dev/null 2>&1
done
echo "measure=true" >> "${GITHUB_OUTPUT:-/dev/null}"
