# needs: javac java
# Sockets, threads and a process. $1 is an empty folder.
cd "$1" || exit 1
cat >Try.java <<'END'
import java.io.*;
import java.net.*;
import java.util.*;
import java.util.concurrent.*;

public class Try {
	public static void main(String[] words) throws Exception {
		var server = new ServerSocket(0, 5, InetAddress.getByName("127.0.0.1"));
		var pool = Executors.newFixedThreadPool(3);
		pool.submit(() -> {
			try (var peer = server.accept()) {
				return peer.getInputStream().transferTo(peer.getOutputStream());
			}
		});
		try (var client = new Socket(server.getInetAddress(), server.getLocalPort())) {
			client.getOutputStream().write("through the loopback".getBytes());
			client.shutdownOutput();
			System.out.println(new String(client.getInputStream().readAllBytes()));
		}
		Callable<Long> work = () -> { long sum = 0; for (int i = 0; i < 100000; i++) sum += i; return sum; };
		long all = 0;
		for (var result : pool.invokeAll(Collections.nCopies(8, work))) all += result.get();
		System.out.println(all);
		pool.shutdown();
		var process = new ProcessBuilder("echo", "from below").start();
		System.out.print(new String(process.getInputStream().readAllBytes()));
		System.exit(5 + process.waitFor());
	}
}
END
javac Try.java && java Try
