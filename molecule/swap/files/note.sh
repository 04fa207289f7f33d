#!/bin/sh
# Before a swap: what must stay, and what must change.
set -e
stat -c %n:%i:%Y /opt/sglang/releases/*/receipt.json /etc/systemd/system/sglang@.service /srv/models/glm4moe/config.json >/run/before-stays
systemctl show --value --property=InvocationID sglang@glm5 >/run/before-invocation
cp /etc/sglang/glm5/launch /run/before-launch
