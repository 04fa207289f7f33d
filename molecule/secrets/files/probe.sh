#!/bin/sh
# Runs as the launch script of an instance of its own, so under all that confines one, and says what it can reach.
# OTHER is the main process of the other instance.
can() { if "$@" >/dev/null 2>&1; then echo "PROBE can: $*"; fi; }
for file in /etc/sglang/glm5/secrets.yaml "/proc/$OTHER/root/etc/sglang/glm5/secrets.yaml" "/proc/$OTHER/environ" "/proc/$OTHER/mem" \
  /etc/shadow /root/.ssh/authorized_keys /home/somebody/private /var/lib/sglang/glm5/ledger.jsonl /dev/mem /dev/kmsg /dev/fuse; do
  can head -c 1 "$file"
done
for folder in /etc /etc/sglang /etc/sglang/probe /opt/sglang /opt/sglang/releases /usr/local /var/lib/sglang /var/log /srv/models /home /root /boot /sys/kernel /run; do
  can touch "$folder/probe-was-here"
done
can unshare --user true
can unshare --mount true
can mount -t tmpfs tmpfs /tmp
can hostname other
can date --set=2030-01-01
can chown 12345 /tmp
can setpriv --reuid=0 true
can kill -0 1
echo "PROBE may: $(for place in /tmp /dev/shm /var/tmp "$HOME"; do touch "$place/probe" && rm "$place/probe" && printf '%s ' "$place"; done)"
echo "PROBE sees: $(ls /etc/sglang) $(ls /var/lib/sglang) $(ls /home) $(ls -d /proc/[0-9]* | wc -l)"
echo "PROBE done"
exec sleep 600
