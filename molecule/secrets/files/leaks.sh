#!/bin/sh
# Where on this host a key of the file $1 stands, a place a line; nothing is the answer that is wanted. Takes the file away.
keys=$1
journalctl --no-pager --output=cat | grep -qFf "$keys" && echo journal
grep -rlFf "$keys" /etc /var/lib/sglang /var/log /opt/sglang/releases/*/*.json /run/systemd /root/.ansible 2>/dev/null | grep -vx /etc/sglang/glm5/secrets.yaml
find /var/cache/sglang -path '*/uv/*' -prune -o -type f -print0 | xargs -0 -r grep -lFf "$keys"
for process in /proc/[0-9]*; do
  for part in cmdline environ; do
    tr '\0' '\n' <"$process/$part" 2>/dev/null | grep -qFf "$keys" && echo "$process/$part"
  done
done
rm "$keys"
