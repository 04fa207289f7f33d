#!/bin/sh
# Starts the probe as an instance of its own and prints what it said.
set -e
systemctl restart sglang@probe
for _ in $(seq 60); do
  if journalctl --unit=sglang@probe --output=cat --no-pager >/run/probe && grep -q 'PROBE done' /run/probe; then break; fi
  sleep 1
done
cat /run/probe
systemctl stop sglang@probe
