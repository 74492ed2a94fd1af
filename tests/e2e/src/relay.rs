//! A relay in front of a TCP server, whose connections a test can cut.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Accepts connections on its own port and forwards them to the server.
pub struct Relay {
    port: u16,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    /// Starts a relay in front of `server`; it ends with the process.
    pub fn to(server: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("the socket is bound").port();
        let connections = Arc::<Mutex<Vec<TcpStream>>>::default();
        let accepted = Arc::clone(&connections);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // If the server is down, the client sees a closed connection.
                let Ok(server) = TcpStream::connect(server) else { continue };
                let duplicate = |stream: &TcpStream| stream.try_clone().expect("a descriptor is free");
                accepted
                    .lock()
                    .expect("no thread panics with the lock held")
                    .extend([duplicate(&client), duplicate(&server)]);
                let (from, to) = (duplicate(&client), duplicate(&server));
                std::thread::spawn(move || forward(from, to));
                std::thread::spawn(move || forward(server, client));
            }
        });
        Relay { port, connections }
    }

    /// Port of the relay.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Cuts all connections in both directions and returns their number; new connections are accepted.
    pub fn cut(&self) -> usize {
        let streams = std::mem::take(&mut *self.connections.lock().expect("no thread panics with the lock held"));
        streams.iter().filter(|stream| stream.shutdown(Shutdown::Both).is_ok()).count() / 2
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream) {
    let _ = from.set_nodelay(true);
    let _ = to.set_nodelay(true);
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
