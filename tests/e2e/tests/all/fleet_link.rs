//! The link between hosts: the view of all of them, and moves that any of them can order.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use e2e::authority::Authority;
use e2e::ceph::cluster;
use e2e::client::Client;
use e2e::daemon::{Daemon, text_of, wait_for};
use e2e::fixture::Fixture;
use rustls::{ClientConnection, StreamOwned};
use serde_json::Value;

use super::fleet::{host, is_state, read, shown, write_and_flush};
use super::rbd_losses::json;
use super::rbd_owners::write_dirty_block;

const BLOCK: usize = 4096;

/// Ports of loopback addresses that are free now.
pub fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    listeners.map(|listener| listener.local_addr().expect("it is bound").port())
}

/// Adds the link between `hosts` to the host named `name`, whose certificate is of `authority`.
pub fn add_link(fixture: &mut Fixture, name: &str, hosts: &[(&str, u16)], authority: &Authority) {
    let hosts: Vec<_> = hosts.iter().map(|(host, port)| (*host, SocketAddr::from(([127, 0, 0, 1], *port)))).collect();
    add_link_at(fixture, name, &hosts, authority);
}

/// As [`add_link`], between hosts at any addresses.
pub fn add_link_at(fixture: &mut Fixture, name: &str, hosts: &[(&str, SocketAddr)], authority: &Authority) {
    authority.write_host(name, fixture.folder.path());
    let list: Vec<String> = hosts.iter().map(|(host, address)| format!("\"{host}={address}\"")).collect();
    let folder = fixture.folder.path().display();
    let link = format!(
        "hosts = [{}]\ntls_certificate = \"{folder}/fleet.crt\"\ntls_key = \"{folder}/fleet.key\"\ntls_ca = \
         \"{folder}/fleet-ca.crt\"\n",
        list.join(", ")
    );
    let table = format!("[fleet]\nhost = \"{name}\"\n");
    fixture.tables = fixture.tables.replace(&table, "") + &table + &link;
}

/// Names of hosts.
pub const NAMES: [&str; 3] = ["alpha", "beta", "gamma"];

/// Hosts with a link and the volume `v` on the image, named by [`NAMES`].
pub fn linked_hosts<const N: usize>(image: &str) -> [Fixture; N] {
    let (ports, authority): ([u16; N], _) = (free_ports(), Authority::default());
    let list: Vec<_> = NAMES.into_iter().zip(ports).collect();
    std::array::from_fn(|number| {
        let mut fixture = host(NAMES[number], image, "");
        super::fleet::add_flash_to(&mut fixture);
        add_link(&mut fixture, NAMES[number], &list, &authority);
        fixture
    })
}

/// The entries of `hotset fleet hosts`.
pub fn hosts(daemon: &Daemon) -> Vec<Value> {
    json(daemon, &["fleet", "hosts"]).as_array().expect("a list").clone()
}

fn error_of(daemon: &Daemon, host: &str) -> String {
    let entry = hosts(daemon).into_iter().find(|entry| entry["host"] == host).expect("every host is listed");
    entry["error"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn hosts_answer_only_to_hosts_of_their_authority() {
    let [of_alpha, of_beta, of_gamma] = free_ports();
    let list = [("alpha", of_alpha), ("beta", of_beta), ("gamma", of_gamma)];
    let (authority, stranger) = (Authority::default(), Authority::default());
    let [mut alpha, mut beta, mut gamma] = [(); 3].map(|()| Fixture::with_volume(1 << 20));
    add_link(&mut alpha, "alpha", &list, &authority);
    add_link(&mut beta, "beta", &list, &authority);
    add_link(&mut gamma, "gamma", &list, &stranger);
    let (first, second, third) = (alpha.start(), beta.start(), gamma.start());
    wait_for("both hosts", || (error_of(&first, "beta") + &error_of(&second, "alpha")).is_empty().then_some(()));
    let entries = hosts(&first);
    let names: Vec<_> = entries.iter().map(|entry| entry["host"].as_str().unwrap_or_default()).collect();
    assert_eq!(names, ["alpha", "beta", "gamma"], "this host comes first");
    assert!(!entries[1]["version"].as_str().unwrap_or_default().is_empty(), "{entries:?}");
    // A host of another authority is refused in both directions.
    wait_for("its listener", || error_of(&first, "gamma").contains("no TLS connection").then_some(()));
    let peers = || json(&first, &["status"])["fleet_hosts"].as_array().expect("a list").clone();
    let [of_beta, of_gamma] = wait_for("both hosts in the status", || {
        let peers = <[Value; 2]>::try_from(peers()).ok()?;
        (peers[0]["version"] != "" && !peers[1]["error"].is_null()).then_some(peers)
    });
    assert_eq!((&of_beta["host"], &of_beta["error"]), (&Value::from("beta"), &Value::Null));
    assert_eq!((&of_gamma["host"], &of_gamma["version"]), (&Value::from("gamma"), &Value::from("")));
    let refused = error_of(&third, "alpha");
    assert!(refused.contains("no TLS connection"), "{refused}");
    wait_for("the refusal in its log", || first.log().contains("is refused: no TLS connection").then_some(()));
    // A trusted host may not request everything.
    let requests = ["{\"action\":\"stop\",\"destage\":false}\n", "{\"action\":\"volume-list\"}\n"];
    for request in requests {
        let answer = ask(&authority, ("beta", "alpha"), of_alpha, request);
        assert!(answer.contains("may not request this"), "{request}: {answer}");
    }
    // A name that is not on the list is refused, and one that is listed must have the certificate of that name.
    assert_eq!(ask(&authority, ("omega", "alpha"), of_alpha, requests[1]), "");
    let refusal = "its certificate is for none of the other hosts";
    wait_for("the refusal in its log", || first.log().contains(refusal).then_some(()));
    third.stop();
    second.stop();
    assert!(error_of(&first, "beta").contains("cannot be reached"), "{}", error_of(&first, "beta"));
    let text = first.command(&["fleet", "hosts"]);
    assert!(text.contains("alpha (this host)") && text.contains("host beta cannot be reached"), "{text}");
    first.stop();
}

/// The reply to a line that the host `from` sends to the host `to`; empty if the connection is refused.
fn ask(authority: &Authority, (from, to): (&'static str, &'static str), port: u16, line: &str) -> String {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("the daemon listens");
    let name = to.try_into().expect("a name");
    let session = ClientConnection::new(authority.client_config(from), name).expect("a valid configuration");
    let mut stream = BufReader::new(StreamOwned::new(session, stream));
    let mut reply = String::new();
    // A refused connection breaks at some point; its reply stays empty.
    let (Ok(_) | Err(_)) = stream.get_mut().write_all(line.as_bytes()).and_then(|()| stream.read_line(&mut reply));
    reply
}

#[test]
fn certificate_of_another_host_leaves_the_daemon_without_its_link() {
    let [of_alpha, of_beta] = free_ports();
    let list = [("alpha", of_alpha), ("beta", of_beta)];
    let (authority, mut alpha) = (Authority::default(), Fixture::with_volume(1 << 20));
    add_link(&mut alpha, "alpha", &list, &authority);
    authority.write_host("beta", alpha.folder.path());
    let daemon = alpha.start();
    let problem = || json(&daemon, &["status"])["problems_without_alert"].to_string();
    wait_for("the problem", || problem().contains("is not for host alpha").then_some(()));
    assert!(is_state(&daemon, "active").is_some(), "volumes are served without the link");
    // It listens once the certificate is right, without a restart.
    authority.write_host("alpha", alpha.folder.path());
    wait_for("the link", || (!problem().contains("link")).then_some(()));
    assert!(error_of(&daemon, "beta").contains("cannot be reached"));
    daemon.stop();
}

#[test]
fn volume_moves_over_the_link_at_the_order_of_any_host() {
    let Some(cluster) = cluster("moves over the link") else { return };
    let image = cluster.create_image("fleet-link", 8);
    let [of_alpha, of_beta, of_gamma] = free_ports();
    let list = [("alpha", of_alpha), ("beta", of_beta), ("gamma", of_gamma)];
    let authority = Authority::default();
    let [alpha, beta, gamma] = ["alpha", "beta", "gamma"].map(|name| {
        let mut fixture = host(name, &image, "");
        super::fleet::add_flash_to(&mut fixture);
        add_link(&mut fixture, name, &list, &authority);
        fixture
    });
    let first = alpha.start();
    let (second, third) = (beta.start(), gamma.start());
    let owner_at = |daemon: &Daemon| {
        let entries = hosts(daemon);
        let owner = entries.iter().find(|entry| entry["volumes"][0]["fleet"]["is_owner"] == true);
        owner.map_or(String::new(), |entry| entry["host"].as_str().unwrap_or_default().to_owned())
    };
    wait_for("the view of all hosts", || (owner_at(&third) == "alpha").then_some(()));
    // The host that orders the move serves the volume when the command ends.
    write_dirty_block(&mut alpha.connect("v"));
    let ordered_at = Instant::now();
    second.command(&["fleet", "move", "v", "--to", "beta"]);
    println!("ordered by the target: served after {} ms", ordered_at.elapsed().as_millis());
    assert!(is_state(&second, "active").is_some() && is_state(&first, "standby").is_some());
    assert_eq!(read(&beta, 0), [0xdd; BLOCK]);
    write_and_flush(&beta, 0, 0xb1);
    // So does the host that the owner names.
    let ordered_at = Instant::now();
    second.command(&["fleet", "move", "v", "--to", "gamma"]);
    println!("ordered by the owner: served after {} ms", ordered_at.elapsed().as_millis());
    assert!(is_state(&third, "active").is_some());
    assert_eq!(shown(&second)["fleet"]["owner"], "gamma", "the former owner knows it at once");
    assert_eq!(read(&gamma, 0), [0xb1; BLOCK]);
    write_and_flush(&gamma, 0, 0xc1);
    // A third host can order it.
    wait_for("the third host's look", || (shown(&first)["fleet"]["owner"] == "gamma").then_some(()));
    first.command(&["fleet", "move", "v", "--to", "beta"]);
    wait_for("the named host", || is_state(&second, "active"));
    assert_eq!(read(&beta, 0), [0xc1; BLOCK]);
    // The first host that answers serves a drained volume.
    let drained = second.command(&["fleet", "drain"]);
    assert!(drained.contains("volume v is served by host "), "{drained}");
    if !drained.contains("host alpha") {
        third.command(&["fleet", "move", "v", "--to", "alpha"]);
    }
    assert_eq!(read(&alpha, 0), [0xc1; BLOCK]);
    // The owner keeps a volume that no host could serve.
    third.stop();
    for (to, reason) in [("omega", "host omega is not among"), ("gamma", "volume v stays here")] {
        let refused = text_of(&first.try_command(&["fleet", "move", "v", "--to", to]));
        assert!(refused.contains(reason) && is_state(&first, "active").is_some(), "{refused}");
    }
    let third = gamma.start();
    // An order for an ownership that has ended changes nothing.
    let identity = shown(&first)["backing_identity"].as_str().unwrap_or_default().to_owned();
    let request = format!("{{\"action\":\"fleet-release\",\"image\":\"{identity}\",\"ownership\":1}}\n");
    let answer = ask(&authority, ("beta", "alpha"), of_alpha, &request);
    assert!(answer.contains("any more: repeat the request"), "{answer}");
    assert!(is_state(&first, "active").is_some());
    // A host that is on no list gets nothing.
    let refused = text_of(&second.try_command(&["fleet", "move", "v", "--to", "omega"]));
    assert!(refused.contains("host omega is not among"), "{refused}");
    let refused = text_of(&second.try_command(&["fleet", "move", "v"]));
    assert!(refused.contains("with --to"), "{refused}");
    // Without the owner's daemon the command says how to go on.
    wait_for("the third host's look", || (shown(&third)["fleet"]["owner"] == "alpha").then_some(()));
    first.kill();
    let refused = text_of(&third.try_command(&["fleet", "move", "v", "--to", "gamma"]));
    assert!(refused.contains("host alpha cannot be reached"), "{refused}");
    std::thread::sleep(Duration::from_secs(1));
    assert!(is_state(&third, "standby").is_some());
    third.stop();
    second.stop();
}

/// Waits for a client of a volume on standby.
pub fn connect_standby(fixture: &Fixture) -> Client {
    wait_for("the forwarding", || Client::connect(&fixture.endpoint(), "v").ok())
}

#[test]
fn first_write_of_a_client_on_standby_moves_the_volume_under_both_clients() {
    let Some(cluster) = cluster("clients on standby") else { return };
    let image = cluster.create_image("fleet-standby", 8);
    let [alpha, beta] = linked_hosts(&image);
    let (first, second) = (alpha.start(), beta.start());
    let mut source = alpha.connect("v");
    let block = |byte: u8| vec![byte; BLOCK];
    source.write(0, &block(0x11)).and_then(|()| source.flush()).expect("the owner serves");
    let mut target = connect_standby(&beta);
    assert_eq!(target.read(0, BLOCK).expect("reads are forwarded"), block(0x11));
    source.write(0, &block(0x22)).expect("the owner serves");
    assert_eq!(target.read(0, BLOCK).expect("reads are forwarded"), block(0x22), "also what was not flushed");
    target.flush().expect("a flush has nothing to do");
    std::thread::sleep(Duration::from_secs(1));
    assert!(is_state(&second, "standby").is_some(), "neither a read nor a flush moves the volume");
    let began_at = Instant::now();
    target.write(BLOCK as u64, &block(0x33)).expect("the first write waits for the ownership");
    println!("the first write took {} ms", began_at.elapsed().as_millis());
    assert!(is_state(&second, "active").is_some() && is_state(&first, "standby").is_some());
    assert_eq!(target.read(0, BLOCK).expect("it is served"), block(0x22));
    // The former client is still connected: its late flush succeeds, and it sees the new content.
    source.flush().expect("nothing is unflushed");
    assert_eq!(source.read(BLOCK as u64, BLOCK).expect("reads are forwarded"), block(0x33));
    assert!(source.write(0, &block(0x44)).is_err(), "the volume has moved away from this client");
    target.flush().expect("it is served");
    assert_eq!(target.read(0, BLOCK).expect("it is served"), block(0x22));
    // A client that connects now moves the volume back, below the former target.
    let mut again = connect_standby(&alpha);
    again.write(0, &block(0x55)).expect("the first write waits for the ownership");
    again.flush().expect("it is served");
    assert!(is_state(&first, "active").is_some());
    assert_eq!(source.read(0, BLOCK).expect("it is served"), block(0x55));
    assert_eq!(target.read(0, BLOCK).expect("reads are forwarded"), block(0x55));
    assert!(target.write(0, &block(0x66)).is_err());
    // A restart of the owner leaves clients on standby connected.
    drop((source, again));
    first.stop();
    let first = alpha.start();
    assert_eq!(wait_for("the owner", || target.read(0, BLOCK).ok()), block(0x55));
    second.stop();
    first.stop();
    let content = cluster.export("fleet-standby");
    assert_eq!((&content[..BLOCK], &content[BLOCK..2 * BLOCK]), (&block(0x55)[..], &block(0x33)[..]));
}

#[test]
fn write_on_standby_fails_in_time_if_the_owner_does_not_answer() {
    let Some(cluster) = cluster("a client on standby of a dead owner") else { return };
    let image = cluster.create_image("fleet-silent", 8);
    let [of_alpha, of_beta] = free_ports();
    let list = [("alpha", of_alpha), ("beta", of_beta)];
    let authority = Authority::default();
    let [alpha, beta] = ["alpha", "beta"].map(|name| {
        let mut fixture = host(name, &image, "policy = \"write-through\"");
        add_link(&mut fixture, name, &list, &authority);
        fixture
    });
    let (first, second) = (alpha.start(), beta.start());
    write_and_flush(&alpha, 0, 0x11);
    let mut target = connect_standby(&beta);
    first.kill();
    let began_at = Instant::now();
    assert!(target.write(0, &[0x22; BLOCK]).is_err());
    let took = began_at.elapsed();
    assert!((15..40).contains(&took.as_secs()), "{took:?}");
    assert!(is_state(&second, "standby").is_some());
    // The take-over serves the client that has stayed connected.
    second.command(&["fleet", "take-over", "v", "--from", "alpha", "--fenced"]);
    assert_eq!(target.read(0, BLOCK).expect("it is served"), [0x11; BLOCK]);
    target.write(0, &[0x33; BLOCK]).and_then(|()| target.flush()).expect("it is served");
    second.stop();
    assert_eq!(cluster.export("fleet-silent")[..BLOCK], [0x33; BLOCK]);
}
