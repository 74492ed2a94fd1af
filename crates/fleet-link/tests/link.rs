//! Two hosts on the loopback interface.

#![allow(clippy::disallowed_methods, reason = "certificates are files")]

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use control::{Actor, Handler, ProgressSender};
use fleet_link::{LinkError, Peer, Refusal, Tunnels, serve};
use messages::{Answer, ErrorKind, Failure, Request};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tls::{Files, HostIdentity};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::watch;

/// Answers with the name of the host that asks.
#[derive(Default)]
struct NameOfActor(RefCell<Vec<Request>>);

impl Handler for NameOfActor {
    async fn handle(
        self: Rc<Self>,
        request: Request,
        actor: Actor,
        progress: ProgressSender,
    ) -> Result<Answer, Failure> {
        self.0.borrow_mut().push(request.clone());
        progress.report("moving", 7);
        // A report that is not sent before the answer is left out.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        match request {
            Request::FleetHost {} => Ok(Answer::Said(vec![actor.show().unwrap_or_default()])),
            _ => Err(Failure::new(ErrorKind::Conflict, "it has another owner")),
        }
    }
}

impl Tunnels for NameOfActor {
    async fn open(self: Rc<Self>, request: Request) -> Result<(UnixStream, Answer), Failure> {
        let Request::FleetForward { ownership: 7, .. } = request else {
            return Err(Failure::new(ErrorKind::Conflict, "it has another owner"));
        };
        let (here, mut there) =
            UnixStream::pair().map_err(|error| Failure::new(ErrorKind::Failed, error.to_string()))?;
        tokio::task::spawn_local(async move {
            // The server speaks first, as that of NBD does.
            there.write_all(b"hello").await.expect("the tunnel is open");
            let mut bytes = [0; 3];
            there.read_exact(&mut bytes).await.expect("the tunnel is open");
            there.write_all(&bytes).await.expect("the tunnel is open");
        });
        Ok((here, Answer::Said(vec!["web".to_owned()])))
    }
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a new key")).expect("a certificate of its own")
}

fn identity(folder: &Path, authority: &CertifiedIssuer<'static, KeyPair>, host: &str) -> HostIdentity {
    let key = KeyPair::generate().expect("a new key");
    let params = CertificateParams::new([host.to_owned()]).expect("a plain name");
    let certificate = params.signed_by(&key, authority).expect("a certificate of the authority");
    let write = |name: &str, content: String| {
        let path = folder.join(name);
        std::fs::write(&path, content).expect("the folder is writable");
        path
    };
    let files = Files {
        certificate: write("host.crt", certificate.pem()),
        key: write("host.key", key.serialize_pem()),
        client_ca: Some(write("ca.crt", authority.pem())),
    };
    files.read_host(host).expect("its own certificate")
}

/// Runs `test` beside the listener of host alpha, which answers to beta; `test` gets the listener's address.
fn beside_alpha(
    server: HostIdentity,
    handler: Rc<NameOfActor>,
    on_refusal: fn(SocketAddr, Refusal),
    test: impl AsyncFnOnce(SocketAddr),
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (stop, stopping) = watch::channel(false);
        let tls = move || Arc::clone(&server.server);
        let serving =
            tokio::task::spawn_local(serve(listener, vec!["beta".to_owned()], tls, handler, on_refusal, stopping));
        test(address).await;
        stop.send(true).expect("it serves");
        serving.await.expect("it has ended");
    });
}

fn peer(host: &str, address: SocketAddr) -> Peer {
    Peer { host: host.to_owned(), address: (address.ip().to_string(), address.port()) }
}

#[test]
fn answers_and_failures_reach_the_host_that_asks() {
    let (folder, authority) = (tempfile::tempdir().expect("a temporary folder"), authority());
    let server = identity(folder.path(), &authority, "alpha");
    let client = identity(folder.path(), &authority, "beta").client;
    let handler = Rc::new(NameOfActor::default());
    let on_refusal = |_, refusal| panic!("a trusted host is refused: {refusal}");
    beside_alpha(server, handler.clone(), on_refusal, async move |address| {
        let alpha = peer("alpha", address);
        let mut reports = 0;
        let answer = alpha.ask(client.clone(), &Request::FleetHost {}, |_| reports += 1).await;
        assert_eq!(answer.map_err(|error| error.to_string()), Ok(Answer::Said(vec!["host beta".to_owned()])));
        assert_eq!(reports, 1);
        let request = Request::FleetReleased { image: "vms/web".to_owned() };
        let failed = alpha.ask(client, &request, |_| ()).await;
        assert!(matches!(failed, Err(LinkError::Failed { failure, .. }) if failure.kind == ErrorKind::Conflict));
    });
    assert_eq!(handler.0.borrow().len(), 2);
}

#[test]
fn host_without_a_trusted_certificate_of_its_name_gets_no_answer() {
    let (folder, trusted) = (tempfile::tempdir().expect("a temporary folder"), authority());
    let server = identity(folder.path(), &trusted, "alpha");
    let unknown = identity(folder.path(), &trusted, "omega").client;
    let stranger = identity(folder.path(), &authority(), "beta").client;
    let beta = identity(folder.path(), &trusted, "beta").client;
    let handler = Rc::new(NameOfActor::default());
    beside_alpha(
        server,
        handler.clone(),
        |_, _| (),
        async move |address| {
            let request = Request::FleetHost {};
            let alpha = peer("alpha", address);
            assert!(alpha.ask(unknown, &request, |_| ()).await.is_err(), "no other host has this name");
            let refused = alpha.ask(stranger, &request, |_| ()).await;
            assert!(matches!(refused, Err(LinkError::Untrusted { .. })), "another authority: {refused:?}");
            // The client checks the name as well: an address may belong to another host.
            let refused = peer("gamma", address).ask(beta.clone(), &request, |_| ()).await;
            assert!(matches!(refused, Err(LinkError::Untrusted { .. })), "{refused:?}");
            let closed = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let silent = closed.local_addr().expect("it is bound");
            drop(closed);
            let absent = peer("alpha", silent).ask(beta, &request, |_| ()).await;
            assert!(matches!(absent, Err(LinkError::Unreachable { .. })), "{absent:?}");
        },
    );
    assert!(handler.0.borrow().is_empty(), "nothing was carried out");
}

#[test]
fn tunnel_carries_the_bytes_of_both_ends_until_one_closes() {
    let (folder, authority) = (tempfile::tempdir().expect("a temporary folder"), authority());
    let server = identity(folder.path(), &authority, "alpha");
    let client = identity(folder.path(), &authority, "beta").client;
    beside_alpha(
        server,
        Rc::default(),
        |_, refusal| panic!("it is refused: {refusal}"),
        async move |address| {
            let alpha = peer("alpha", address);
            let request = |ownership| Request::FleetForward { image: "vms/web".to_owned(), ownership };
            let mut tunnel = alpha.open_tunnel(client.clone(), &request(7)).await.expect("it is the owner");
            let mut hello = [0; 5];
            tunnel.read_exact(&mut hello).await.expect("the tunnel is open");
            assert_eq!(hello, *b"hello");
            tunnel.write_all(b"abc").await.expect("the tunnel is open");
            tunnel.flush().await.expect("the tunnel is open");
            let mut rest = Vec::new();
            // The end of the server may break the connection.
            let (Ok(_) | Err(_)) = tunnel.read_to_end(&mut rest).await;
            assert_eq!(rest, b"abc");
            let refused = alpha.open_tunnel(client, &request(6)).await.map(drop);
            assert!(matches!(refused, Err(LinkError::Failed { failure, .. }) if failure.kind == ErrorKind::Conflict));
        },
    );
}
