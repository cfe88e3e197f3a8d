//! `--net` and `-p`: connections from the guest, connections to the guest, and refused ones.

mod peer;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use self::peer::Peer;
use super::common::{Dialogue, all_bytes, finish, guest_program, kernel, promises, run, run_command, text};

/// Returns a free port of this machine.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.local_addr().expect("it is bound").port()
}

/// Serves each connection in a thread of its own, for as long as the test runs; returns the port.
fn serve(each: fn(TcpStream) -> std::io::Result<()>) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || each(stream));
        }
    });
    port
}

fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    let mut back = stream.try_clone()?;
    std::io::copy(&mut stream, &mut back)?;
    back.shutdown(Shutdown::Write)
}

/// Starts an echo server for TCP and UDP at one port.
fn serve_both() -> u16 {
    loop {
        let port = serve(echo);
        let Ok(socket) = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)) else { continue };
        thread::spawn(move || {
            let mut bytes = [0; 65536];
            while let Ok((count, from)) = socket.recv_from(&mut bytes) {
                let _ = socket.send_to(&bytes[..count], from);
            }
        });
        return port;
    }
}

/// Connects to a forwarded port; QEMU accepts before the guest does.
fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("QEMU listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time-out");
    stream
}

/// Sends `bytes`; returns the bytes that come back.
fn echoed(mut stream: &TcpStream, bytes: &[u8]) -> Vec<u8> {
    stream.write_all(bytes).expect("sent");
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back).expect("it comes back");
    back
}

#[test]
fn sockets_behave_to_another_machine_as_linux_has_it() {
    if kernel() == "linux" {
        return; // Nobody sets its network up.
    }
    // With unread bytes the end of the connection is a reset.
    let reset = serve(|mut stream| stream.read_exact(&mut [0]));
    let (echo, closed) = (serve_both(), free_port());
    let ports = [echo, closed, reset].map(|port| port.to_string());
    let words = ["wire", "10.0.2.2", &ports[0], &ports[1], &ports[2], "ends"];
    for options in [
        &["--net", "user"][..],
        &["--net", "user", "--cpus", "4", "--iommu"],
        &["--net", "user", "--cpus", "4", "--iommu=virtio"],
    ] {
        promises(run_command(), options, &words, &[]);
    }
}

#[test]
fn a_server_in_the_guest_serves_many_and_outlives_those_who_break_off() {
    if kernel() == "linux" {
        return; // Nobody sets its network up.
    }
    const CALLERS: usize = 300;
    let port = free_port();
    let forward = format!("{port}:80");
    let program = guest_program("conformance/wire");
    let mut server = Dialogue::begin(&["-p", &forward, "--cpus", "2"], &[text(&program), "serve", "80"]);
    assert_eq!(server.hear(), "ready");
    // QEMU's queue has room for one connection: the next one is made once this one is through.
    let call = |number| {
        let (caller, said) = (connect(port), format!("caller {number}"));
        assert_eq!(echoed(&caller, said.as_bytes()), said.as_bytes());
        caller
    };
    let callers: Vec<TcpStream> = (0..CALLERS).map(call).collect();
    // Every other connection ends with bytes in transit.
    let stay: Vec<TcpStream> = callers
        .into_iter()
        .enumerate()
        .filter_map(|(number, mut caller)| {
            if number % 2 == 0 {
                return Some(caller);
            }
            caller.write_all(&[7; 5000]).expect("sent");
            None
        })
        .collect();
    let many = all_bytes(200_000);
    for caller in &stay {
        assert_eq!(echoed(caller, b"still here"), b"still here");
    }
    let last = &stay[0];
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut back, mut last) = (vec![0; many.len()], last);
            last.read_exact(&mut back).map(|()| back)
        });
        let mut last = last;
        last.write_all(&many).expect("sent");
        assert!(reader.join().expect("it reads").expect("it comes back") == many);
    });
    drop(stay);
    connect(port).write_all(b"quit").expect("sent");
    assert_eq!(server.hear(), format!("accepted {}", CALLERS + 1));
    assert_eq!(server.end(), 0);
}

#[test]
fn a_forwarded_port_is_all_that_a_guest_with_p_alone_has() {
    if kernel() == "linux" {
        return; // Nobody sets its network up.
    }
    let port = serve(echo);
    let script = format!(
        "cat /etc/resolv.conf; cat /proc/net/route | cut -f 1-2 | sort; wget -q -T 3 -O - http://10.0.2.2:{port}/ && echo reached"
    );
    let forward = format!("{}:80", free_port());
    let outcome = run(&["--sealed", "-p", &forward], &["busybox", "ash", "-c", &script], b"");
    assert!(!outcome.text().contains("reached"), "{outcome:?}");
    assert!(
        outcome.text().contains("eth0\t0002000A") && outcome.stderr.contains("resolv.conf"),
        "{outcome:?}"
    );
}

#[test]
fn a_file_comes_whole_and_names_are_asked_of_qemu() {
    if kernel() == "linux" {
        return; // Nobody sets its network up.
    }
    let port = serve(|mut stream| {
        let _ = stream.read(&mut [0; 1000])?;
        let body = all_bytes(3_000_000);
        write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", body.len())?;
        stream.write_all(&body)
    });
    let script = format!("wget -q -O - http://10.0.2.2:{port}/file; cat /etc/resolv.conf");
    let outcome = run(&["--sealed", "--net", "user"], &["busybox", "ash", "-c", &script], b"").expect(0);
    assert!(outcome.stdout == [&all_bytes(3_000_000)[..], b"nameserver 10.0.2.3\n"].concat());
}

#[test]
fn without_a_network_there_is_only_lo() {
    let script = "ls /sys/class/net; wget -q -O - http://10.0.2.2:80/";
    let outcome = run(&["--sealed"], &["busybox", "ash", "-c", script], b"").expect(1);
    assert_eq!(outcome.text(), "lo\n");
    assert!(outcome.stderr.contains("Network is unreachable"), "{}", outcome.stderr);
}

#[test]
fn what_cannot_be_is_told_before_anything_starts() {
    let holder = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let taken = format!("{}:80", holder.local_addr().expect("it is bound").port());
    for (options, said) in [
        (&["-p", &taken][..], "is in use"),
        (&["--net", "none", "-p", "8080:80"], "--net none is none"),
        (&["-p", "80"], "not HOST:GUEST"),
        (&["-p", "8053:53/udp"], "-p 8053:53/udp: without --net user every answer over UDP is lost"),
        (&["--net", "user", "--icount"], "a network does not"),
        (&["-p", "192.0.2.1:8080:80"], "no address of this machine"),
    ] {
        let outcome = run(options, &["busybox", "true"], b"").expect(125);
        assert!(
            kernel() == "linux" || outcome.stderr.contains(said) && outcome.stderr.lines().count() == 1,
            "{options:?}: {}",
            outcome.stderr
        );
    }
}

/// The bytes for a deaf peer wait in bounded buffers, and others are served meanwhile.
#[test]
fn a_peer_that_never_reads_holds_nobody_up() {
    if kernel() == "linux" {
        return; // Nobody sets its network up.
    }
    let port = free_port();
    let forward = format!("{port}:80");
    let program = guest_program("conformance/wire");
    let mut server = Dialogue::begin(&["-p", &forward], &[text(&program), "serve-apart", "80"]);
    assert_eq!(server.hear(), "ready");
    let mut deaf = connect(port);
    deaf.set_nonblocking(true).expect("it does not wait");
    let until = Instant::now() + Duration::from_secs(60);
    let mut full = 0;
    while full < 20 && Instant::now() < until {
        match deaf.write(&[1; 65536]) {
            Ok(_) => full = 0,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                full += 1;
                thread::sleep(Duration::from_millis(100));
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(full, 20, "buffers have no end");
    for _ in 0..20 {
        assert_eq!(echoed(&connect(port), b"next"), b"next");
    }
    // The rest of the bytes arrives completely.
    deaf.set_nonblocking(false).expect("it waits");
    let mut came = vec![0; 1_000_000];
    deaf.read_exact(&mut came).expect("it comes back");
    assert!(came.iter().all(|&byte| byte == 1));
    server.kill();
}

#[test]
fn a_network_of_its_own_is_in_the_dry_run() {
    let mut command = run_command();
    command.args(["--dry-run", "--net", "user", "-p", "8080:80", "--", "busybox", "true"]);
    let outcome = finish(command, b"");
    assert!(
        kernel() == "linux" || outcome.text().contains("restrict=off,hostfwd=tcp:127.0.0.1:8080-:80"),
        "{outcome:?}"
    );
}

/// Starts the guest's server, with a peer in this process at the other end of its wire.
fn with_peer(folder: &tempfile::TempDir, options: &[&str]) -> (Dialogue, Peer) {
    let (peer, qemu) = Peer::new(folder);
    let mut command = run_command();
    command.env("FREEHOLD_QEMU", qemu).args(["--net", "user"]).args(options);
    command.args(["--", text(&guest_program("conformance/wire")), "serve", "80"]);
    let mut server = Dialogue::with(command);
    assert_eq!(server.hear(), "ready");
    (server, peer)
}

#[test]
fn ten_thousand_connections_of_which_half_are_broken_off() {
    if kernel() == "linux" {
        return; // Nobody sets its network up.
    }
    const CALLERS: usize = 10_000;
    const AT_ONCE: usize = 100;
    let folder = tempfile::tempdir().expect("temporary folder");
    let (mut server, mut peer) = with_peer(&folder, &["-m", "1G", "--cpus", "2"]);
    let answered = |peer: &Peer, number: usize, count: usize| peer.caller(number).received.len() == count;
    for first in (0..CALLERS).step_by(AT_ONCE) {
        for _ in 0..AT_ONCE {
            peer.call(b"hello");
        }
        peer.run_until(|peer| (first..first + AT_ONCE).all(|number| answered(peer, number, 5)));
    }
    (1..CALLERS).step_by(2).for_each(|number| peer.reset(number));
    for first in (0..CALLERS).step_by(2 * AT_ONCE) {
        let some = || (first..first + 2 * AT_ONCE).step_by(2);
        some().for_each(|number| peer.send(number, b"again"));
        peer.run_until(|peer| some().all(|number| answered(peer, number, 10)));
    }
    assert!((0..CALLERS).step_by(2).all(|number| peer.caller(number).received == b"helloagain"));
    peer.send(0, b"quit");
    assert_eq!(server.hear(), format!("accepted {CALLERS}"));
    assert_eq!(server.end(), 0);
}

#[test]
fn a_flood_of_calls_keeps_nobody_out() {
    if kernel() == "linux" {
        return; // Nobody sets its network up.
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let (mut server, mut peer) = with_peer(&folder, &[]);
    let before = peer.call(b"before");
    peer.run_until(|peer| peer.caller(before).received == b"before");
    // Each honest call gets through, in spite of the others.
    for _ in 0..20 {
        (0..200).for_each(|_| peer.call_and_go());
        let honest = peer.call(b"through");
        peer.run_until(|peer| peer.caller(honest).received == b"through");
    }
    peer.send(before, b"quit");
    assert_eq!(server.hear(), "accepted 21");
    assert_eq!(server.end(), 0);
}
