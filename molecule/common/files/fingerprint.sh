#!/bin/sh
# One line that changes when a deployment changes anything: its files, releases, models, the unit or the running process.
set -e
{
    find /opt/sglang /etc/sglang /etc/systemd/system /var/lib/sglang /srv/models -printf '%p %i %s %T@\n' | sort
    systemctl show --value --property=InvocationID,NRestarts sglang@glm5
} | sha256sum
