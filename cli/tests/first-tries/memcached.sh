# needs: memcached python3
# A server with four threads, and thirty clients. $1 is an empty folder.
memcached -u root -l 127.0.0.1 -p 11999 -t 4 &
python3 - <<'END'
import socket, time
while True:
    try:
        first = socket.create_connection(("127.0.0.1", 11999))
        break
    except OSError:
        time.sleep(0.2)
stream = first.makefile("rwb")
def ask(text):
    stream.write(text)
    stream.flush()
    return stream.readline()
for i in range(200):
    value = b"x" * (i * 37)
    assert ask(b"set k%d 0 0 %d\r\n%s\r\n" % (i, len(value), value)) == b"STORED\r\n"
print(ask(b"get k3 k4\r\n"), [stream.readline() for _ in range(4)])
print(ask(b"incr k3 1\r\n"), ask(b"version\r\n"))
others = [socket.create_connection(("127.0.0.1", 11999)) for _ in range(30)]
for other in others:
    other.sendall(b"get k0\r\n")
print({other.makefile("rb").readline() for other in others})
END
kill $!
wait $!
echo "status $?"
