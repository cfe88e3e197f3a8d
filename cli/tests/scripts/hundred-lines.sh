#!/bin/busybox ash
# A hundred lines of everyday shell: the same stdout, stderr and status on the host and in the VM.
# Usage: hundred-lines.sh DISK (a block device or a file of 1 MiB); works in the current folder.
disk=$1
echo "arguments: $# status: $?"

echo "== pipes"
seq 1 20 | grep 1 | sort -rn | head -n 5
echo one two three | tr ' ' '\n' | sort | uniq -c | awk '{ print $2 "=" $1 }'
yes | head -n 1000 | wc -l
seq 1 5000 | tac | sort -n | tail -n 1
printf 'b\na\nc\n' | { read first; echo "first $first"; cat; }

echo "== here-documents"
name=world
cat <<END
hello $name, $((6 * 7))
END
cat <<'END' | sed 's/dollar/$/'
no $expansion here, dollar
END
while read -r word rest; do echo "[$word] ($rest)"; done <<END
alpha beta gamma
delta
END

echo "== redirections"
{ echo out; echo err >&2; } > both 2>&1
cat both
echo more >> both; wc -l < both
ls nothing-here 2> errors || echo "ls failed with $?"
[ -s errors ] && echo "and said why"
exec 3> three; echo "through three" >&3; exec 3>&-; cat three
echo "to stderr" >&2
sh_out=$(echo nested $(echo deeper $(echo deepest))); echo "$sh_out"

echo "== background jobs"
(sleep 0.2; echo slow > slow) & slow=$!
(exit 7) & seven=$!
wait $slow; echo "slow: $? $(cat slow)"
wait $seven; echo "seven: $?"
for i in 1 2 3 4; do (echo "child $i" > child.$i; exit $i) & done; wait
cat child.*
sleep 60 & victim=$!
kill $victim; wait $victim 2> /dev/null; echo "killed: $?"
mkfifo pipe; (echo through a fifo > pipe) & cat pipe; wait

echo "== traps"
busybox ash -c 'trap "echo caught TERM; exit 9" TERM; (sleep 0.1; kill -TERM $$) & wait; wait'; echo "status $?"
sh_trap='trap "echo leaving" EXIT; trap "echo usr1" USR1; kill -USR1 $$; echo after; exit 4'
busybox ash -c "$sh_trap"; echo "status $?"
busybox ash -c 'kill -SEGV $$' 2> /dev/null; echo "segv gives $?"
trap 'echo interrupted' INT; kill -INT $$; trap - INT

echo "== globbing and parameters"
mkdir -p tree/a tree/b; touch tree/a/1.txt tree/a/2.log tree/b/3.txt tree/.hidden
echo tree/*/*.txt; echo tree/[ab]/?.log; echo tree/*nothing*
path=/usr/local/share/file.tar.gz
echo "${path##*/} ${path%.*} ${path%%.*} ${#path} ${unset:-default} ${path:+set}"
set -- "a b" c; for arg in "$@"; do echo "<$arg>"; done; echo "$*"
case $path in *.zip) echo zip ;; *.tar.*) echo tarball ;; esac
i=0; while [ $i -lt 5 ]; do i=$((i + 1)); [ $i = 3 ] && continue; printf '%d ' $i; done; echo
fact() { if [ "$1" -le 1 ]; then echo 1; else echo $(($1 * $(fact $(($1 - 1))))); fi; }; fact 10

echo "== sort, awk, sed, find, xargs"
awk 'BEGIN { for (i = 1; i <= 200; i++) print (i * 7919) % 1009, i }' > numbers
sort -n numbers | head -n 3; sort -k2,2nr numbers | head -n 2
awk '{ s += $1; if ($1 > m) m = $1 } END { printf "%d %d %.3f\n", s, m, s / NR }' numbers
find tree -type f | sort | xargs -n 2 echo pair
sed -n '2,4p;$p' numbers | cut -d' ' -f1 | paste -s -d, 2> /dev/null || sed -n '2,4p;$p' numbers
diff both three > differences; echo "diff says $?"; wc -l < differences
date -u -d @1000000000 '+%Y-%m-%d %H:%M:%S'; expr 17 % 5 + 2; test 3 -gt 2 && echo greater

echo "== many processes"
n=0; for i in $(seq 1 40); do n=$((n + $(echo $i | awk '{ print $1 * $1 }'))); done; echo "sum of squares $n"
seq 1 60 | xargs -n 1 -P 4 busybox expr 1 + | sort -n | tail -n 2
(ulimit -n 16; echo "files: $(ulimit -n)"); ls /proc/self/fd > fds && echo "own descriptors listed"

echo "== files"
ln -s both link; readlink link; ln both hard; [ both -ef hard ] && echo same inode
chmod 640 both; stat -c '%a %s %F' both; touch -d '2001-02-03 04:05:06' both; stat -c %Y both
mv hard moved && rm -r tree && ls | sort | head -n 30
umask 027; mkdir masked; stat -c %a masked; cd masked && cd .. && basename "$(readlink -f link)"

echo "== tar and gzip"
mkdir pack; seq 1 20000 > pack/numbers; cp /proc/self/cmdline pack/cmd; head -c 100000 /dev/zero > pack/zeros
tar -cf - pack | gzip -9 > pack.tgz; rm pack/cmd; mv pack packed
gzip -dc pack.tgz | tar -xf - && md5sum pack/numbers pack/zeros && cmp pack/numbers packed/numbers && echo equal
gzip -t pack.tgz && echo whole

echo "== dd to the disk and back"
dd if=pack/numbers of="$disk" bs=4096 conv=notrunc,fsync 2> /dev/null; echo "written: $?"
size=$(stat -c %s pack/numbers)
dd if="$disk" bs=4096 count=64 2> /dev/null | head -c "$size" | cmp - pack/numbers && echo "read back"
dd if=/dev/zero of="$disk" bs=512 seek=7 count=1 conv=notrunc 2> /dev/null
dd if="$disk" bs=512 skip=6 count=3 2> /dev/null | md5sum
cd / && cd - > /dev/null && [ "$PWD" = "$(pwd -P)" ] && echo "here still"
printf '%05d|%-6s|%x|%c\n' 42 ab 255 zed
sync; echo "left: $(ls | wc -l) names"
exit 42
