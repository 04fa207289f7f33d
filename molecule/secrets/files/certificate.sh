#!/bin/sh
# A new certificate and key for glm5.example.com, put in place as docs/security.md says.
set -e
umask 077
cd /etc/ssl/sglang
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=glm5.example.com \
  -addext subjectAltName=DNS:glm5.example.com -keyout /run/privkey.pem -out /run/fullchain.pem 2>/dev/null
install -o root -g sglang -m 0640 /run/privkey.pem privkey.pem.new
install -o root -g sglang -m 0644 /run/fullchain.pem fullchain.pem.new
mv privkey.pem.new privkey.pem
mv fullchain.pem.new fullchain.pem
rm /run/privkey.pem /run/fullchain.pem
