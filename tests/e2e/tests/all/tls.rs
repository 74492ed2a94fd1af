//! TLS on TCP, with an authority of the test's own, and certificates that change.

use std::fs;

use e2e::certificate::Certificate;
use e2e::daemon::wait_for;
use e2e::fixture::Fixture;
use e2e::tool::tool;

const MIB: u64 = 1 << 20;

/// Writes an authority and a server certificate for `localhost` into the fixture's folder, with libnbd's file names.
fn create_certificates(fixture: &Fixture) {
    let script = "
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=authority -keyout \
        ca-key.pem -out ca-cert.pem
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost -keyout server-key.pem \
        -out server.csr
        printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\\nbasicConstraints=CA:FALSE\\n' > server.ext
        openssl x509 -req -in server.csr -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -days 2 -extfile \
        server.ext -out server-cert.pem
        mkdir strangers && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj \
        /CN=stranger \
          -keyout strangers/ca-key.pem -out strangers/ca-cert.pem";
    tool("sh").arg("-ec").arg(script).within(fixture.folder.path()).ok();
}

/// A fixture with TLS in `mode` on a TCP port, and the port.
fn fixture(mode: &str) -> (Fixture, u16) {
    let mut fixture = Fixture::with_volume(4 * MIB);
    create_certificates(&fixture);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("the socket has an address").port();
    fixture.listen.push(format!("tcp:127.0.0.1:{port}"));
    let folder = fixture.folder.path().display();
    fixture.nbd = format!(
        "tls = \"{mode}\"\ntls_certificate = \"{folder}/server-cert.pem\"\ntls_key = \"{folder}/server-key.pem\"\n"
    );
    (fixture, port)
}

/// NBD URI with TLS; `authority` is the path of the client's authority file, below the fixture's folder.
fn tls_uri(fixture: &Fixture, port: u16, authority: &str) -> String {
    let folder = fixture.folder.path().display();
    format!("nbds://localhost:{port}/v?tls-certificates={folder}{authority}")
}

#[test]
fn client_without_the_authority_is_refused() {
    let (fixture, port) = fixture("required");
    let daemon = fixture.start();
    let script = format!(
        "h.set_uri_allow_local_file(True)\nh.connect_uri('{}')\nassert h.get_tls_negotiated()\n\
         h.pwrite(b's' * 4096, 0)\nh.flush()\nassert h.pread(4096, 0) == b's' * 4096\n",
        tls_uri(&fixture, port, "")
    );
    tool("nbdsh").arg("-c").arg(script).ok();
    tool("nbdinfo").arg(tls_uri(&fixture, port, "/strangers")).fails();
    tool("nbdinfo").arg(format!("nbd://localhost:{port}/v")).fails();
    daemon.stop();
    let content = std::fs::read(fixture.backing("v")).expect("the backing exists");
    assert_eq!(content[..4096], [b's'; 4096]);
}

#[test]
fn optional_tls_serves_encrypted_and_plain_clients() {
    let (fixture, port) = fixture("allowed");
    let daemon = fixture.start();
    tool("nbdinfo").arg(tls_uri(&fixture, port, "")).ok();
    tool("nbdinfo").arg(format!("nbd://localhost:{port}/v")).ok();
    daemon.stop();
}

#[test]
fn large_image_survives_encryption() {
    let (fixture, port) = fixture("required");
    let daemon = fixture.start();
    let image = fixture.folder.join("image");
    tool("sh").arg("-c").arg("head -c 4194304 /dev/urandom > image").within(fixture.folder.path()).ok();
    tool("nbdcopy").arg(&image).arg(tls_uri(&fixture, port, "")).ok();
    tool("nbdcopy").arg(tls_uri(&fixture, port, "")).arg(fixture.folder.join("back")).ok();
    tool("cmp").arg(&image).arg(fixture.folder.join("back")).ok();
    daemon.stop();
}

#[test]
fn reload_applies_a_changed_nbd_certificate() {
    let (mut fixture, port) = fixture("required");
    let (first, second) = (Certificate::new("first"), Certificate::new("second"));
    for (name, certificate) in [("first", &first), ("second", &second)] {
        let folder = fixture.folder.join(name);
        fs::create_dir(&folder).expect("the folder can be created");
        // A client with its own authority file trusts only that authority.
        fs::write(folder.join("ca-cert.pem"), &certificate.certificate_pem).expect("the folder can be written");
    }
    fixture.nbd = fixture.nbd.replace("server-cert.pem", "server.crt").replace("server-key.pem", "server.key");
    let [_, key] = first.write(fixture.folder.path());
    let daemon = fixture.start();
    let reload = |word: &str| {
        let before = daemon.log().len();
        daemon.signal("HUP");
        wait_for(word, || daemon.log().get(before..).filter(|log| log.contains(word)).map(str::to_owned))
    };
    let info = |name: &str| tool("nbdinfo").arg(tls_uri(&fixture, port, &format!("/{name}")));
    info("first").ok();
    // A connected client keeps its session.
    let (ready, proceed) = (fixture.folder.join("ready"), fixture.folder.join("go"));
    let script = format!(
        "import os, time\nh.set_uri_allow_local_file(True)\nh.connect_uri('{}')\nopen('{}', 'w').close()\n\
         while not os.path.exists('{}'): time.sleep(0.05)\nassert len(h.pread(4096, 0)) == 4096\n",
        tls_uri(&fixture, port, "/first"),
        ready.display(),
        proceed.display()
    );
    std::thread::scope(|scope| {
        let client = scope.spawn(|| tool("nbdsh").arg("-c").arg(script).ok());
        wait_for("a client that is connected", || ready.exists().then_some(()));
        second.write(fixture.folder.path());
        let log = reload("[nbd] certificate");
        assert!(log.contains("server.crt loaded") && !log.contains("restart"), "{log}");
        fs::write(&proceed, "").expect("the folder can be written");
        client.join().expect("the client continues");
    });
    info("second").ok();
    info("first").fails();
    // The key of another certificate.
    fs::write(&key, &first.key_pem).expect("the folder can be written");
    reload("[nbd] keeps its previous certificate: the key in");
    info("second").ok();
    daemon.stop();
}
