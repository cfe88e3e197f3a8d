# needs: python3 sqlite3
# Python with its standard library: sqlite, threads, processes, sockets. $1 is an empty folder.
cd "$1" || exit 1
python3 - <<'END' || exit
import asyncio, concurrent.futures, json, multiprocessing, os, sqlite3, ssl, subprocess, threading

database = sqlite3.connect("x.db")
database.execute("pragma journal_mode=wal")
database.execute("create table t(a integer primary key, b text)")
database.executemany("insert into t(b) values(?)", [(str(i * i),) for i in range(2000)])
database.commit()
print(database.execute("select count(*), sum(length(b)) from t").fetchall())
print(subprocess.run(["sqlite3", "x.db", "select max(a) from t"], capture_output=True).stdout)

numbers = []
threads = [threading.Thread(target=numbers.append, args=(i,)) for i in range(20)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(sorted(numbers))

def square(x):
    return x * x

with multiprocessing.Pool(3) as pool:
    print(pool.map(square, range(10)))

async def main():
    async def upper(reader, writer):
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()
    server = await asyncio.start_server(upper, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
    writer.write(b"hello\n")
    print(await reader.read())
    server.close()
    process = await asyncio.create_subprocess_exec("echo", "from below", stdout=asyncio.subprocess.PIPE)
    print(await process.communicate())

asyncio.run(main())
print(os.uname().sysname, ssl.create_default_context().verify_mode, json.dumps({"a": [1, None]}))
END
python3 -m venv --without-pip venv && venv/bin/python -c 'import os, sys; print(os.path.basename(sys.prefix))'
