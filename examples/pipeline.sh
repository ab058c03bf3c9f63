#!/usr/bin/env bash
# Piped lines are turns of one conversation; with --json each is one object, for a script to take apart.
# Run: examples/pipeline.sh
set -euo pipefail

printf '%s\n' 'My favourite colour is green.' 'What is my favourite colour?' |
    ts chat --json --quiet --temperature 0 --max-tokens 30 |
    python3 -c '
import json, sys
for line in sys.stdin:
    turn = json.loads(line)
    print(turn["reply"])
    print("  reused", turn["reused_prefix_tokens"], "of", turn["prompt_tokens"], "prompt tokens", file=sys.stderr)
'

# One prompt from an argument and a file together; only the reply is on stdout.
ts complete --quiet --temperature 0 --max-tokens 40 "Summarise this in one sentence:" < LICENSE
