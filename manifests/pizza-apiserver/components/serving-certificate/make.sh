#!/bin/sh
# Makes ca.crt and ca.key if they are not there, and a new tls.crt and tls.key, in this folder. Needs openssl 1.1.1 or later.
set -eu
cd "$(dirname "$0")"
umask 077
name=api.restaurant.svc
if ! [ -f ca.key ]; then
    openssl ecparam -name prime256v1 -genkey -noout -out ca.key
    openssl req -x509 -new -key ca.key -days 3650 -subj "/CN=restaurant-serving-ca" -out ca.crt \
        -addext "keyUsage=critical,keyCertSign,cRLSign"
fi
openssl ecparam -name prime256v1 -genkey -noout -out tls.key
extensions=$(mktemp)
trap 'rm -f "$extensions"' EXIT
printf 'subjectAltName=DNS:%s,DNS:%s.cluster.local\nextendedKeyUsage=serverAuth\nkeyUsage=critical,digitalSignature\nbasicConstraints=critical,CA:FALSE\n' \
    "$name" "$name" >"$extensions"
openssl req -new -key tls.key -subj "/CN=$name" |
    openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -extfile "$extensions" -out tls.crt
