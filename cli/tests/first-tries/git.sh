# needs: git curl python3
# Clones from two kinds of servers, and a push. $1 is an empty folder.
cd "$1" || exit 1
export HOME=$1/home GIT_AUTHOR_DATE=2020-01-01T00:00:00Z GIT_COMMITTER_DATE=2020-01-01T00:00:00Z
mkdir "$HOME" server work
git config --global user.name a
git config --global user.email a@b
git config --global init.defaultBranch main
git config --global safe.directory '*'
(cd work && git init -q && for i in 1 2 3 4 5; do seq $i 200 >f$i && git add . && git commit -qm "number $i"; done)
git clone -q --bare work server/r.git
git -C server/r.git update-server-info
port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
a=$(port) b=$(port)
git daemon --base-path="$1/server" --export-all --reuseaddr --listen=127.0.0.1 --port="$a" --enable=receive-pack \
	--pid-file="$1/pid" --detach
(cd server && exec python3 -m http.server -b 127.0.0.1 "$b" >/dev/null 2>&1) &
until git ls-remote "git://127.0.0.1:$a/r.git" >/dev/null 2>&1; do sleep 0.2; done
until curl -sf "http://127.0.0.1:$b/" >/dev/null; do sleep 0.2; done
git clone -q "git://127.0.0.1:$a/r.git" one
(cd one && git log --oneline && git fsck 2>/dev/null && echo x >new && git add new && git commit -qm new && git push -q origin main)
git -C server/r.git log --oneline | wc -l
git clone -q "http://127.0.0.1:$b/r.git" two
git -C two rev-parse HEAD
curl -sS -o /dev/null -w '%{http_code}\n' "http://127.0.0.1:$b/none"
git -C two gc -q && git -C two grep -c 100 | wc -l
kill $! "$(cat pid)"
