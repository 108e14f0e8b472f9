"""Put a Markdown file on the pull request as one comment, which later pushes replace.

    python action/comment.py FILE

In: GITHUB_TOKEN, GITHUB_REPOSITORY, GITHUB_EVENT_PATH, GITHUB_API_URL, as GitHub sets them. Standard library only. A
comment that cannot be written is one line, and no failure: the table is in the job's summary, too.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

MARK = "<!-- loaderbench -->"
MOST_PAGES = 20
PER_PAGE = 100
LONGEST = 65_000
"""Characters; GitHub takes 65,536."""


def asked(method: str, url: str, body: object = None) -> Any:
    """What the API answers. Raises urllib.error.URLError."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Accept": "application/vnd.github+json", "Authorization": f"Bearer {os.environ['GITHUB_TOKEN']}"}
    request = urllib.request.Request(url, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def earlier(comments: str) -> str | None:
    """The URL of the comment that an earlier push left. `comments`: the URL of all of the pull request's."""
    for page in range(1, MOST_PAGES + 1):
        found = asked("GET", f"{comments}?per_page={PER_PAGE}&page={page}")
        for one in found:
            if str(one.get("body") or "").startswith(MARK):
                return str(one["url"])
        if len(found) < PER_PAGE:
            break
    return None


def main() -> int:
    """Write the comment. Always 0."""
    text = Path(sys.argv[1]).read_text()[:LONGEST]
    event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text())
    number = event.get("pull_request", {}).get("number")
    if number is None:
        print("loaderbench: this is no pull request: no comment was written")
        return 0
    repository = f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}"
    comments = f"{repository}/issues/{number}/comments"
    try:
        found = earlier(comments)
        asked("POST" if found is None else "PATCH", found or comments, {"body": text})
    except (urllib.error.URLError, OSError, ValueError) as error:
        print(
            f"loaderbench: no comment was written ({error}): the job needs `permissions: pull-requests: write`, "
            "which a fork's pull request never has; the table is in the job's summary"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
