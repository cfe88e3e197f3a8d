# needs: bash tar gzip xz awk find flock
# A script as people write them. $1 is an empty folder.
cd "$1" || exit 1
export LC_ALL=C
declare -A count
for word in a b a c a; do count[$word]=$((${count[$word]:-0} + 1)); done
for word in "${!count[@]}"; do echo "$word ${count[$word]}"; done | sort
diff <(seq 1 5) <(seq 2 6) || echo "they differ: $?"
coproc cat
echo "to the coprocess" >&"${COPROC[1]}"
read -r -u "${COPROC[0]}" answer && echo "$answer"
trap 'echo trapped' USR1
kill -USR1 $$
(exit 3) || echo "a subshell's status: $?"
timeout 0.2 sleep 100 || echo "timeout: $?"
sleep 0.1 & wait $!
seq 20000 | sort -R | sort -n | md5sum
printf '%s\n' {a..e}{1..3} | paste -sd, | sed 's/a/A/g' | awk -F, '{ print NF, $2 }'
mkdir -p tree/{x,y} && echo 1 >tree/x/file && ln -s x/file tree/link
tar --sort=name -czf tree.tgz tree && tar -tzf tree.tgz && xz -k tree.tgz && xz -t tree.tgz.xz
find tree -type f -newermt 2000-01-01 -printf '%p %s\n' | xargs -n 2 echo found
cat <<END | tr a-z A-Z
here: $((6 * 7))
END
(exec 3<>/dev/tcp/127.0.0.1/1) 2>/dev/null || echo "no server"
[[ abc =~ (b)(c) ]] && echo "${BASH_REMATCH[2]}"
mapfile -t lines < <(seq 3) && echo "${#lines[@]} lines"
flock lock echo locked
stat -c '%a %F' tree lock
[ -t 0 ] || echo "no terminal"
cd tree/x/.. && [ "$(pwd -P)" = "$(cd ../tree && pwd -P)" ] && echo "the same folder"
exit 7
