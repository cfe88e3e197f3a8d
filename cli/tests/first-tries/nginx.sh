# needs: nginx curl
# A web server with two workers and a proxy, and sixteen clients at once. $1 is an empty folder.
cd "$1" && mkdir www || exit 1
head -c 3000000 /dev/zero | tr '\0' 'x' >www/big
seq 5000 >www/text.txt
echo index >www/index.html
cat >conf <<END
daemon off; worker_processes 2; user root root; pid $1/pid; error_log $1/error.log;
events { worker_connections 64; }
http {
	access_log $1/access.log; sendfile on; tcp_nopush on; gzip on; gzip_types text/plain;
	client_body_temp_path $1/a; proxy_temp_path $1/b; fastcgi_temp_path $1/c; uwsgi_temp_path $1/d; scgi_temp_path $1/e;
	server { listen ${LISTEN:-127.0.0.1:8180}; root $1/www; location /p/ { proxy_pass http://127.0.0.1:8181/; } }
	server { listen 127.0.0.1:8181; root $1/www; }
}
END
nginx -e "$1/error.log" -c "$1/conf" &
[ -z "$LISTEN" ] || { wait; exit; }
at=http://127.0.0.1:8180
until curl -sf $at/ >/dev/null; do sleep 0.2; done
curl -sS $at/
curl -sS $at/big | cmp - www/big && echo "the same bytes"
for path in /text.txt /p/text.txt; do curl -sS --compressed $at$path | md5sum; done
curl -sS -r 100-199 $at/text.txt | md5sum
curl -sS -o /dev/null -w '%{http_code}\n' $at/none
seq 40 | xargs -P 16 -I{} curl -sS -o /dev/null -w '%{http_code} %{size_download}\n' $at/big | sort | uniq -c
kill -QUIT "$(cat pid)"
wait
echo "status $?"
