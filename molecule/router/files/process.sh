#!/bin/sh
# What is known of the router's process: unit properties, its argument list (a word a line), where keys stand, what it can see.
set -eu
unit=sglang-router@router.service
systemctl show --property=ActiveState,UnitFileState,User,KillMode,NRestarts,NoNewPrivileges,ProtectSystem,DevicePolicy,DeviceAllow "$unit"
pid=$(systemctl show --value --property=MainPID "$unit")
tr '\0' '\n' <"/proc/$pid/cmdline" | sed 's/^/arg /'
for key in "$@"; do
  for file in "/proc/$pid/cmdline" "/proc/$pid/environ" /etc/sglang-router/router/spec.json /etc/sglang-router/router/environment; do
    if grep -qaF "$key" "$file"; then echo "key in $file"; fi
  done
  if journalctl --unit="$unit" --all --no-pager | grep -qaF "$key"; then echo "key in the journal"; fi
done
stat --format='file %U:%G %a %n' /etc/sglang-router/router/secrets.yaml /etc/sglang-router/router/launch
systemd-analyze security --no-pager "$unit" | tail -1 | sed 's/^/judged /'
