# needs: tcpdump
# Two datagrams on the loopback device, seen as they pass, written to a file, and read from it. $1
# is an empty folder.
cd "$1" || exit 1
tcpdump -Z root -i lo -c 2 -U -w seen 'udp port 5999' 2>messages &
until grep -q listening messages; do sleep 0.2; done
for text in one two; do echo "$text" >/dev/udp/127.0.0.1/5999; done
wait
tcpdump -Z root -r seen -n -t -q -A 2>/dev/null | sed 's/127.0.0.1.[0-9]* >/127.0.0.1 >/' | grep -a -o 'IP .*\|one\|two'
grep -E 'captured|dropped' messages
