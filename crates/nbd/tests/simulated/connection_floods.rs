//! Large numbers of connections: which of them lock out further clients.

use nbd::{Options, Server};
use nbd_protocol::flags;
use seam::sim::SimSeam;
use seam::{Address, Nanos, Seam};

use crate::client::{Client, sectors};
use crate::fixture::{connect, with_server};

/// Number of connections; more than a server accepts.
const CONNECTIONS: usize = 1100;

/// Makes the server listen on a network as well.
async fn listen_on_a_network(seam: &SimSeam, server: &Server<SimSeam>) -> Address {
    let address = Address::Tcp("10.0.0.1".to_owned(), 10_809);
    let (listener, server) = (seam.listen(&address).await.expect("the address is free"), server.clone());
    seam.spawn(async move { server.accept(listener).await });
    address
}

/// Checks that a client can select the export, write and read.
async fn assert_served(client: &mut Client) {
    client.go("vm1").await;
    client.write(0, &sectors(1, 8)).await.expect("written");
    assert_eq!(client.read(0, 4096).await, Ok(sectors(1, 8)));
}

#[test]
fn silent_network_connections_lock_no_client_out() {
    with_server(91, Options::default(), async |seam, server| {
        let address = listen_on_a_network(&seam, &server).await;
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS {
            silent.push(Client::connect_without_flags(&seam, &address).await);
        }
        let before = seam.now();
        assert_served(&mut connect(&seam).await).await;
        assert_served(&mut Client::connect(&seam, &address).await).await;
        assert!(seam.now().since(before) < Nanos::from_millis(200), "simulated time, equal on every machine");
        assert!(silent[0].receive(nbd_protocol::greeting::decode_greeting).await.is_some());
        assert!(silent[0].is_closed().await, "the oldest silent connection is closed");
        let last = silent.last_mut().expect("there are connections");
        assert!(last.receive(nbd_protocol::greeting::decode_greeting).await.is_some());
        assert_served_after_greeting(last).await;
    });
}

/// Like [`assert_served`], for a client that has received its greeting and sent nothing.
async fn assert_served_after_greeting(client: &mut Client) {
    client.send(&u32::from(flags::FIXED_NEWSTYLE | flags::NO_ZEROES).to_be_bytes()).await;
    assert_served(client).await;
}

#[test]
fn network_clients_leave_places_for_local_clients() {
    with_server(92, Options { connections_max: 40, ..Options::default() }, async |seam, server| {
        let address = listen_on_a_network(&seam, &server).await;
        let mut remote = Vec::new();
        for _ in 0..20 {
            let mut client = Client::connect(&seam, &address).await;
            client.go("vm1").await;
            remote.push(client);
        }
        let mut late = Client::connect_without_flags(&seam, &address).await;
        assert!(late.is_closed().await);
        let mut local = Vec::new();
        for _ in 0..20 {
            let mut client = connect(&seam).await;
            assert_served(&mut client).await;
            local.push(client);
        }
        let address = crate::fixture::address();
        assert!(Client::connect_without_flags(&seam, &address).await.is_closed().await, "the limit is forty");
        assert_eq!((server.stats().connections, server.stats().refused), (40, 2));
    });
}

#[test]
fn silent_connections_are_counted_and_do_not_delay_a_stop() {
    with_server(93, Options::default(), async |seam, server| {
        let mut client = connect(&seam).await;
        client.go("vm1").await;
        let mut silent = Vec::new();
        for _ in 0..100 {
            silent.push(Client::connect_without_flags(&seam, &crate::fixture::address()).await);
        }
        // Time to accept all connections.
        seam.sleep(Nanos::from_millis(10)).await;
        assert_eq!((server.stats().connections, server.clients_of("vm1")), (101, 1));
        server.stop(Nanos::from_secs(5)).await;
        assert_eq!(server.stats().connections, 0, "silent connections are not waited for");
        drop(silent);
    });
}
