//! Tests of calls on paths. A call that waits for a channel stands for one on a hung file system.

use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(60);

/// A call that hangs until a message arrives, and has begun.
fn hang(path: &Path) -> (PathCall<()>, Sender<()>) {
    let (release, released): (_, Receiver<()>) = channel();
    let (begin, has_begun) = channel();
    let call = PathCall::start(path, move |_| {
        begin.send(()).expect("the test waits");
        // The test may have ended.
        let _ = released.recv();
    });
    has_begun.recv().expect("the call begins");
    (call, release)
}

fn is_idle(path: &Path) -> bool {
    !lock(&CALLS).has_hung(path)
}

/// A call in a domain under a name that no mount has, and that no other test uses.
fn call_in(domain: &str, path: &str, work: impl FnOnce() + Send + 'static) -> PathCall<()> {
    let (sender, answer) = oneshot::channel();
    let call = Arc::new(CallState::new(Path::new(path), &domain.to_owned()));
    let on_thread = call.clone();
    let work = Box::new(move || {
        work();
        on_thread.is_answered.store(true, Ordering::Relaxed);
        // The test may have given up.
        let _ = sender.send(());
    });
    let resolver = PathResolver { is_at_device: true, ..PathResolver::new(Path::new("/")) };
    lock(&CALLS).queue(domain.to_owned(), Job { call: call.clone(), resolver, work });
    PathCall { answer, call }
}

#[test]
fn result_of_a_call_is_returned() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let file = folder.path().join("there");
    std::fs::write(&file, "abc").expect("the folder can be written");
    let len = PathCall::start(&file, {
        let file = file.clone();
        move |_| std::fs::metadata(&file).map(|metadata| metadata.len()).ok()
    });
    assert_eq!(len.wait(LONG), Ok(Some(3)));
    let missing = folder.path().join("missing/below");
    let is_missing = PathCall::start(&missing, {
        let missing = missing.clone();
        move |_| !missing.exists()
    });
    assert_eq!(is_missing.wait(LONG), Ok(true), "the call itself finds that the path is missing");
}

#[test]
fn path_that_answered_can_be_called_again_at_once() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    for number in 0..1_000 {
        assert_eq!(PathCall::start(folder.path(), move |_| number).wait(LONG), Ok(number));
    }
}

#[test]
fn hung_path_fails_at_its_limit_and_then_at_once() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let (hung, other) = (folder.path().join("hung"), folder.path().join("other"));
    let (call, release) = hang(&hung);
    let error = call.wait(SHORT).expect_err("the call hangs");
    assert!(error.to_string().starts_with(&format!("{} does not answer", hung.display())), "{error}");
    let mut second = PathCall::start(&hung, |_| ());
    assert_eq!(second.try_answer(), Some(Err(PathHung { path: hung.clone() })), "no second thread hangs");
    assert_eq!(PathCall::start(&other, |_| 5).wait(LONG), Ok(5), "another path is not affected");
    release.send(()).expect("the call waits");
    while !is_idle(&hung) {
        std::thread::yield_now();
    }
    assert_eq!(PathCall::start(&hung, |_| 6).wait(LONG), Ok(6), "the path answers again");
}

#[test]
fn hung_domain_occupies_a_bounded_number_of_threads() {
    let (release, released) = channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let hang = || {
        let released = released.clone();
        // Fails once the test has dropped the sender.
        move || assert!(lock(&released).recv().is_err())
    };
    let calls: Vec<_> =
        (0..THREADS_PER_DOMAIN + 3).map(|number| call_in("hung", &format!("/h{number}"), hang())).collect();
    let counts = || lock(&CALLS).domains.get("hung").map(|calls| (calls.running.len(), calls.queue.len()));
    while counts() != Some((THREADS_PER_DOMAIN, 3)) {
        std::thread::yield_now();
    }
    call_in("healthy", "/a", || ()).wait(LONG).expect("another domain has threads of its own");
    assert!(calls.into_iter().all(|call| call.wait(SHORT).is_err()));
    assert_eq!(counts(), Some((THREADS_PER_DOMAIN, 0)), "abandoned calls leave the queue");
    assert!(matches!(call_in("hung", "/later", || ()).try_answer(), Some(Err(_))), "no thread can become free in time");
    drop(release);
    while counts().is_some() {
        std::thread::yield_now();
    }
    call_in("hung", "/later", || ()).wait(LONG).expect("the domain answers again");
}

#[test]
fn hung_domains_leave_threads_to_a_healthy_domain() {
    let (release, released) = channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let names: Vec<_> = (0..2 * ANSWERING_MAX).map(|number| format!("dead{number}")).collect();
    let hung_calls = names.iter().map(|name| {
        let released = released.clone();
        call_in(name, &format!("/{name}"), move || assert!(lock(&released).recv().is_err()))
    });
    let hung_calls: Vec<_> = hung_calls.collect();
    let running = |name: &str| lock(&CALLS).domains.get(name).map_or(0, |calls| calls.running.len());
    while names.iter().any(|name| running(name) == 0) {
        std::thread::yield_now();
    }
    call_in("first", "/f", || ()).wait(LONG).expect("a domain gets its first thread beside hung calls");
    assert!(hung_calls.into_iter().all(|call| call.wait(SHORT).is_err()));
    let all_run = Arc::new(std::sync::Barrier::new(THREADS_PER_DOMAIN));
    let together = (0..THREADS_PER_DOMAIN).map(|number| {
        let all_run = all_run.clone();
        call_in("many", &format!("/m{number}"), move || {
            all_run.wait();
        })
    });
    let together: Vec<_> = together.collect();
    assert!(together.into_iter().all(|call| call.wait(LONG).is_ok()), "abandoned calls take no thread of it");
    drop(release);
    while names.iter().any(|name| running(name) > 0) {
        std::thread::yield_now();
    }
}

#[test]
fn queued_call_waits_while_its_domain_answers() {
    let calls: Vec<_> = (0..THREADS_PER_DOMAIN * 8)
        .map(|number| call_in("slow", &format!("/s{number}"), || std::thread::sleep(Duration::from_millis(20))))
        .collect();
    let limit = Duration::from_secs(5);
    assert!(calls.into_iter().all(|call| call.wait(limit).is_ok()), "no call stalls for as long as the limit");
}

#[test]
fn abandoned_call_reports_itself_as_abandoned() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let (release, released) = channel::<()>();
    let (report, reported) = channel();
    let call = PathCall::start(folder.path(), move |call| {
        released.recv().expect("the test sends");
        report.send(call.is_abandoned()).expect("the test waits");
    });
    assert!(call.wait(SHORT).is_err());
    release.send(()).expect("the call waits");
    assert_eq!(reported.recv(), Ok(true));
}

#[test]
fn link_leads_into_the_domain_of_its_target() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("/proc/self/../self/status", &link).expect("the folder can be written");
    let mounts = Mounts::read();
    let (of_link, of_target) = (mounts.domain_of(&link), mounts.domain_of(Path::new("/proc/self/status")));
    assert_ne!(of_link, of_target);
    let mut resolver = PathResolver::new(&link);
    let mut domains = vec![Domain::new()];
    while let Some(next) = resolver.advance(domains.last().expect("never empty")) {
        domains.push(next);
        assert!(domains.len() < 10, "{domains:?}");
    }
    assert_eq!(domains.last(), Some(&of_target));
    assert_eq!(resolver.resolved, Path::new("/proc").join(std::process::id().to_string()).join("status"));
}

#[test]
fn mounts_are_parsed_with_escaped_paths() {
    let text = b"22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
                 36 22 0:45 / /srv/a\\040b rw - nfs host:/x rw\n\
                 37 36 0:46 / /srv/a\\040b rw - nfs host:/y rw\n";
    let mounts = Mounts::parse(text);
    assert_eq!(mounts.domain_of(Path::new("/srv/a b/c")), "0:46", "the later mount is on top");
    assert_eq!(mounts.domain_of(Path::new("/srv/a")), "8:1");
    assert!(mounts.is_mount_point(Path::new("/srv/a b")) && !mounts.is_mount_point(Path::new("/srv")));
}
