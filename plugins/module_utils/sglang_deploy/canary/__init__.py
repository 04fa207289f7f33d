"""The canary: asks a deployed instance again and again whether it still decodes, when nobody else is kept waiting by it.

A timer of systemd starts `ask.main` once a minute. Each time it looks (`look`), decides whether to send the decode check
(`decide`), keeps what it found (`record`) and tells Prometheus (`metrics`). `install` puts all that on a host as one file.
Standard library only, since it runs there without Ansible.
"""
