#!/bin/sh
# After a swap: prints the lines that are new in the launch script; fails where something else changed, or the process did not.
set -e
stat -c %n:%i:%Y /opt/sglang/releases/*/receipt.json /etc/systemd/system/sglang@.service /srv/models/glm4moe/config.json | cmp - /run/before-stays
test "$(systemctl show --value --property=InvocationID sglang@glm5)" != "$(cat /run/before-invocation)"
diff /run/before-launch /etc/sglang/glm5/launch | sed -n -e '/# Release/d' -e 's/ *\\$//' -e 's/^\([<>]\) */\1 /p'
