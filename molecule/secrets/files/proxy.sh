#!/bin/sh
# Puts nginx before the server on port $2, with the configuration in the file $1, and says what it lets through.
set -e
apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq nginx-light curl >/dev/null
install -d /etc/ssl/sglang
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=glm5.example.com \
  -addext subjectAltName=DNS:glm5.example.com -keyout /etc/ssl/sglang/privkey.pem -out /etc/ssl/sglang/fullchain.pem 2>/dev/null
sed "s/127.0.0.1:8000/127.0.0.1:$2/" "$1" >/etc/nginx/conf.d/glm5.conf
nginx -t -q
systemctl restart nginx
key=$(sed -n 's/^api-key: "\(.*\)"/\1/p' /etc/sglang/glm5/secrets.yaml)
ask() {
  printf '%s %s\n' "$1" "$(curl -s -o /dev/null -w '%{http_code}' --cacert /etc/ssl/sglang/fullchain.pem \
    --resolve glm5.example.com:443:127.0.0.1 -H "$2" "https://glm5.example.com$1")"
}
ask /v1/models "X: y"
for path in /v1/models /metrics /server_info /flush_cache /health; do
  ask "$path" "Authorization: Bearer $key"
done
