# needs: gcc make tar
# Builds Lua from the sources in the folder LUA_SOURCES, four files at once. $1 is an empty folder.
cp -r "$LUA_SOURCES/." "$1" && cd "$1/src" || exit 1
make -s -j4 linux >log 2>&1
echo "make: $?"
./lua -e 'print(_VERSION, ("x"):rep(10), 2^53)'
ls | grep -c '\.o$'
