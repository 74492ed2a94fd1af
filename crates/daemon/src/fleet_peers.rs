//! The other hosts of the fleet, as their answers to regular requests show them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use messages::report::FleetPeerReport;
use messages::{Answer, Failure, Request};
use tokio::sync::watch;

use super::fleet_link::FleetLink;

/// Pause between two requests to a host. They are those of `fleet hosts`, which hosts of earlier versions answer too.
const ASK_PAUSE: Duration = Duration::from_secs(15);
/// Time for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The hosts.
#[derive(Default)]
pub struct FleetPeers(RefCell<BTreeMap<String, Seen>>);

/// The answers of a host.
struct Seen {
    /// Its version at the last answer; empty before.
    version: String,
    /// Time of the last answer, or of the first request.
    answered_at: Instant,
    /// The reason why it has not answered the last request.
    error: Option<String>,
}

impl FleetPeers {
    /// Asks the other hosts again and again, until `stop` turns true.
    pub async fn ask(self: Rc<Self>, link: Rc<FleetLink>, mut stop: watch::Receiver<bool>) {
        while !*stop.borrow() {
            for peer in link.peers() {
                self.add(peer.host);
            }
            let answers = link.ask_all(ANSWER_TIMEOUT, &Request::FleetHost {}).await;
            let hosts: Vec<String> = answers.iter().map(|(peer, _)| peer.host.clone()).collect();
            self.0.borrow_mut().retain(|host, _| hosts.contains(host));
            for (peer, answer) in answers {
                self.note(&peer.host, answer);
            }
            // An error means that the daemon ends.
            let (Ok(_) | Err(_)) = tokio::time::timeout(ASK_PAUSE, stop.changed()).await;
        }
    }

    /// The hosts, by name.
    pub fn reports(&self) -> Vec<FleetPeerReport> {
        let report = |(host, seen): (&String, &Seen)| FleetPeerReport {
            host: host.clone(),
            version: seen.version.clone(),
            silent_ms: seen.answered_at.elapsed().as_millis() as u64,
            error: seen.error.clone(),
        };
        self.0.borrow().iter().map(report).collect()
    }

    fn add(&self, host: String) {
        let seen = Seen { version: String::new(), answered_at: Instant::now(), error: None };
        self.0.borrow_mut().entry(host).or_insert(seen);
    }

    fn note(&self, host: &str, answer: Result<Answer, Failure>) {
        let mut hosts = self.0.borrow_mut();
        let Some(seen) = hosts.get_mut(host) else { return };
        match answer {
            Ok(Answer::FleetHost(report)) => {
                *seen = Seen { version: report.version, answered_at: Instant::now(), error: None };
            }
            Ok(_) => seen.error = Some(format!("host {host} has given another answer than that about itself")),
            Err(failure) => seen.error = Some(failure.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use messages::ErrorKind;
    use messages::report::FleetHostReport;

    use super::*;

    #[test]
    fn failed_request_keeps_the_version_and_the_time_of_the_last_answer() {
        let peers = FleetPeers::default();
        peers.add("beta".to_owned());
        let report = FleetHostReport { version: "1.2".to_owned(), ..FleetHostReport::default() };
        peers.note("beta", Ok(Answer::FleetHost(Box::new(report))));
        let answered_at = peers.0.borrow()["beta"].answered_at;
        peers.note("beta", Err(Failure::new(ErrorKind::Unavailable, "it is off")));
        peers.note("gamma", Err(Failure::new(ErrorKind::Unavailable, "it is off the list")));
        peers.add("beta".to_owned());
        assert_eq!(peers.0.borrow()["beta"].answered_at, answered_at);
        let reports = peers.reports();
        let [FleetPeerReport { host, version, error, .. }] = reports.as_slice() else { panic!("{reports:?}") };
        assert_eq!((host.as_str(), version.as_str(), error.as_deref()), ("beta", "1.2", Some("it is off")));
    }
}
