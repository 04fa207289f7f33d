#!/bin/sh
# What the server on port $1 says to who checks its certificate: the status, and the certificate's fingerprint.
key=$(sed -n 's/^api-key: "\(.*\)"/\1/p' /etc/sglang/glm5/secrets.yaml)
for attempt in $(seq 120); do
  code=$(curl -s -o /dev/null -w '%{http_code}' --cacert /etc/ssl/sglang/fullchain.pem --resolve "glm5.example.com:$1:127.0.0.1" \
    -H "Authorization: Bearer $key" "https://glm5.example.com:$1/v1/models") && break
  sleep 1
done
echo "$code"
openssl s_client -connect "127.0.0.1:$1" </dev/null 2>/dev/null | openssl x509 -noout -fingerprint -sha256
openssl x509 -in /etc/ssl/sglang/fullchain.pem -noout -fingerprint -sha256
