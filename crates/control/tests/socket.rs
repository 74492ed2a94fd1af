//! The control socket between a real server and a real client.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use control::{Actor, Client, ClientError, Handler, Limits, ProgressSender};
use messages::{Answer, ErrorKind, Failure, Request};
use tokio::sync::watch;

/// Answers flushes after some progress, refuses a volume named "missing", and counts finished flushes.
struct Fake {
    finished: Arc<AtomicUsize>,
}

impl Handler for Fake {
    async fn handle(
        self: Rc<Self>,
        request: Request,
        actor: Actor,
        progress: ProgressSender,
    ) -> Result<Answer, Failure> {
        match request {
            Request::Reload {} => Ok(Answer::Said(vec![format!("{actor:?}")])),
            Request::VolumeFlush { name, .. } if name == "missing" => Err(Failure::no_volume(&name)),
            Request::VolumeFlush { name, .. } => {
                for remaining in [2, 1] {
                    progress.report("destaging", remaining);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                self.finished.fetch_add(1, Ordering::SeqCst);
                Ok(Answer::Said(vec![format!("{name} is clean")]))
            }
            _ => Ok(Answer::Said(Vec::new())),
        }
    }
}

struct RunningServer {
    socket: PathBuf,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
    finished: Arc<AtomicUsize>,
    _folder: tempfile::TempDir,
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.stop.send(true).expect("the server listens");
        self.thread.take().expect("joined once").join().expect("the server does not panic");
        assert!(!self.socket.exists(), "the socket's file is removed");
    }
}

fn start(limits: Limits) -> RunningServer {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let socket = folder.path().join("run/control.sock");
    let (stop, stopped) = watch::channel(false);
    let (ready, ready_receiver) = std::sync::mpsc::channel();
    let finished = Arc::new(AtomicUsize::new(0));
    let (path, counter) = (socket.clone(), finished.clone());
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let handler = Rc::new(Fake { finished: counter });
        let ready = move || ready.send(()).expect("the test waits");
        let served = control::serve(&path, handler, limits, ready, stopped);
        tokio::task::LocalSet::new().block_on(&runtime, served).expect("a socket of its own");
    });
    ready_receiver.recv().expect("the server gets ready");
    RunningServer { socket, stop, thread: Some(thread), finished, _folder: folder }
}

fn flush(name: &str) -> Request {
    Request::VolumeFlush { name: name.to_owned(), in_background: false }
}

/// Sends raw bytes and returns the bytes received until the server closes.
fn exchange_bytes(socket: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).expect("the server listens");
    // The server may hang up before all is sent.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    text
}

#[test]
fn long_action_reports_progress_and_then_its_end() {
    let server = start(Limits::default());
    let mut client = Client::connect(&server.socket).expect("the server listens");
    let mut reported = Vec::new();
    let answer = client.request(&flush("a"), |progress| reported.push(progress.dirty_bytes)).expect("flushed");
    assert_eq!(answer, Answer::Said(vec!["a is clean".to_owned()]));
    assert_eq!(reported, [2, 1]);
    assert_eq!(
        client.request(&Request::Status {}, |_| ()).expect("the connection remains usable"),
        Answer::Said(Vec::new())
    );
}

#[test]
fn failure_is_returned_with_its_kind() {
    let server = start(Limits::default());
    let mut client = Client::connect(&server.socket).expect("the server listens");
    let Err(ClientError::Failed(failure)) = client.request(&flush("missing"), |_| ()) else {
        panic!("the volume does not exist")
    };
    assert_eq!(failure.kind, ErrorKind::NotFound);
    assert!(failure.message.contains("hotset volume list"), "{}", failure.message);
}

#[test]
fn garbage_gets_an_error_and_other_clients_are_served() {
    let server = start(Limits::default());
    assert!(exchange_bytes(&server.socket, b"hello\n{\"action\":\"status\"}\n").contains("not a request"));
    assert!(exchange_bytes(&server.socket, b"{\"action\":\"status\"}\n").contains("done"));
    assert!(exchange_bytes(&server.socket, &vec![b'x'; 1 << 20]).contains("longer than"));
    assert!(Client::connect(&server.socket).expect("still there").request(&flush("a"), |_| ()).is_ok());
}

#[test]
fn action_completes_after_its_client_disconnects() {
    let server = start(Limits::default());
    let mut stream = UnixStream::connect(&server.socket).expect("the server listens");
    stream.write_all(b"{\"action\":\"volume-flush\",\"name\":\"a\"}\n").expect("sent");
    drop(stream);
    for _ in 0..500 {
        if server.finished.load(Ordering::SeqCst) == 1 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the action was not completed");
}

/// Time after which a test reports a hang; far below [`FOREVER`].
const HANG_TIMEOUT: Duration = Duration::from_secs(60);
/// An idle time-out that no test waits for.
const FOREVER: Duration = Duration::from_secs(3600);

/// Runs `work` on a thread of its own and waits for its end.
fn within_timeout<T: Send + 'static>(context: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(HANG_TIMEOUT).unwrap_or_else(|_| panic!("{context}: not within {HANG_TIMEOUT:?}"))
}

#[test]
fn silent_connections_block_neither_requests_nor_the_stop() {
    let server = start(Limits { idle_max: 4, idle_timeout: FOREVER, ..Limits::default() });
    let connect = |number| {
        let mut stream = UnixStream::connect(&server.socket).expect("accepted");
        // Half a request does not count as one. Later it could meet a connection that newer ones have displaced.
        if number >= 8 {
            stream.write_all(b"{\"action\":").expect("sent");
        }
        stream
    };
    let mut silent: Vec<_> = (0..16).map(connect).collect();
    let socket = server.socket.clone();
    within_timeout("an answer beside silent connections", move || {
        let mut client = Client::connect(&socket).expect("accepted");
        for _ in 0..3 {
            assert!(client.request(&flush("a"), |_| ()).is_ok());
        }
    });
    // The one that has waited longest was closed.
    assert_eq!(silent[0].read(&mut [0; 1]).expect("closed"), 0);
    within_timeout("the end of the server", move || drop(server));
    drop(silent);
}

#[test]
fn idle_connections_are_closed_after_the_time_out() {
    let server = start(Limits { idle_timeout: Duration::from_millis(50), ..Limits::default() });
    let mut idle = UnixStream::connect(&server.socket).expect("accepted");
    assert_eq!(idle.read(&mut [0; 1]).expect("closed"), 0);
}

#[test]
fn requests_past_the_limit_wait_and_past_twice_it_are_refused() {
    let server = start(Limits { requests_max: 2, ..Limits::default() });
    let clients: Vec<_> = (0..9)
        .map(|_| {
            let socket = server.socket.clone();
            std::thread::spawn(move || Client::connect(&socket).expect("accepted").request(&flush("a"), |_| ()))
        })
        .collect();
    let mut completed = 0;
    for client in clients {
        match client.join().expect("it does not panic") {
            Ok(_) => completed += 1,
            Err(error) => assert!(error.to_string().contains("try again later"), "{error}"),
        }
    }
    assert!(completed >= 4 && completed == server.finished.load(Ordering::SeqCst), "{completed} of 9 were done");
}

#[test]
fn stale_socket_is_replaced_and_a_live_one_is_not() {
    let server = start(Limits::default());
    let (_stop, stopped) = watch::channel(true);
    let handler = Rc::new(Fake { finished: Arc::default() });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let serve = |path: &Path| {
        let served = control::serve(path, handler.clone(), Limits::default(), || (), stopped.clone());
        tokio::task::LocalSet::new().block_on(&runtime, served)
    };
    let refused = serve(&server.socket).expect_err("a live socket").to_string();
    assert!(refused.contains("another daemon answers there"), "{refused}");
    let dead = server.socket.with_file_name("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&dead).expect("a socket without a process"));
    assert!(dead.exists());
    serve(&dead).expect("replaced");
}

#[test]
fn socket_is_accessible_to_its_owner_and_group() {
    let server = start(Limits::default());
    let mode = std::fs::metadata(&server.socket).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
}

#[test]
fn missing_daemon_gives_a_clear_error() {
    let Err(error) = Client::connect(Path::new("/nonexistent/control.sock")) else { panic!("no daemon listens there") };
    assert!(error.to_string().contains("start one with `hotset serve`"), "{error}");
}

#[test]
fn actor_is_the_user_that_the_kernel_reports() {
    use std::os::unix::fs::MetadataExt;
    let server = start(Limits::default());
    let mut client = Client::connect(&server.socket).expect("the server listens");
    let own_uid = std::fs::metadata(&server.socket).expect("its metadata").uid();
    let answer = client.request(&Request::Reload {}, |_| ()).expect("it answers");
    assert_eq!(answer, Answer::Said(vec![format!("{:?}", Actor::User(own_uid))]));
}
