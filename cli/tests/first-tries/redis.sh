# needs: redis-server redis-cli redis-check-rdb redis-benchmark
# A server on TCP, which writes its file in the background. $1 is an empty folder.
cd "$1" || exit 1
redis-server --port 7777 --save '' --daemonize no >log 2>&1 &
r() { redis-cli -p 7777 "$@"; }
until r ping 2>/dev/null | grep -q PONG; do sleep 0.2; done
printf '%s\n' 'set a 1' 'incr a' 'lpush l 1 2 3' 'lrange l 0 -1' "eval \"return redis.call('get','a')\" 0" | r
for i in $(seq 3000); do echo "set k$i v$i"; done | r | sort | uniq -c
saved() { while r info persistence | grep -q rdb_bgsave_in_progress:1; do sleep 0.1; done; }
r bgsave && saved
r info persistence | grep -a rdb_last_bgsave_status
r dbsize
redis-check-rdb dump.rdb | grep -c OK
r bgrewriteaof
redis-benchmark -p 7777 -n 500 -c 20 -t ping,set -q | wc -l
r shutdown nosave
wait
echo "status $?"
ls
