//! Faults in memory shared with other processes: a missing page of a shared file (SIGBUS) ends the mapping's owner, not
//! this process.
//!
//! The other process may truncate a shared file, and a file system in memory may have no page left for a hole. An
//! access to such a page raises SIGBUS on the accessing thread. For a guarded mapping the handler sets the owner's
//! [`FaultFlag`], maps zeroes over the whole mapping and returns. The access then continues, and the holder of the flag
//! ends the owner. A fault at any other address goes to the previous handler, which ends the process.
//!
//! The handler allocates nothing and takes no lock. It reads a table of fixed size. Each entry is written under a
//! version (a sequence lock), so a scan never sees a half-written entry. The entry of a faulting address cannot change
//! during the scan, because the faulting thread holds the mapping.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use libc::{c_int, c_void, siginfo_t};

/// Maximum number of guarded mappings, over all front ends of all volumes.
pub const GUARDS_MAX: usize = 16_384;

/// Set after a page of the mapping was missing: the mapping shows zeroes since then. A clone is the same flag.
#[derive(Clone, Debug, Default)]
pub struct FaultFlag(Arc<AtomicBool>);

impl FaultFlag {
    /// True after a page was missing.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// One guarded mapping. Invariants: fields change only while `version` is odd, and one [`FaultGuard`] holds `taken`.
struct Entry {
    taken: AtomicBool,
    version: AtomicUsize,
    start: AtomicUsize,
    len: AtomicUsize,
    flag: AtomicPtr<AtomicBool>,
}

impl Entry {
    const fn empty() -> Entry {
        Entry {
            taken: AtomicBool::new(false),
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            flag: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    fn set(&self, start: usize, len: usize, flag: *mut AtomicBool) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.flag.store(flag, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// The mapping, if it contains `address` and no change is in progress.
    fn containing(&self, address: usize) -> Option<(usize, usize, *mut AtomicBool)> {
        let version = self.version.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        let len = self.len.load(Ordering::Relaxed);
        let flag = self.flag.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let is_whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        (is_whole && address.wrapping_sub(start) < len).then_some((start, len, flag))
    }
}

static ENTRIES: [Entry; GUARDS_MAX] = [const { Entry::empty() }; GUARDS_MAX];
/// Entries from here on have never been used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// The previous handler.
static PREVIOUS_HANDLER: OnceLock<libc::sigaction> = OnceLock::new();

/// Guard of one mapping; must be dropped before the mapping is unmapped.
#[derive(Debug)]
pub struct FaultGuard {
    index: usize,
    /// Kept alive for the handler, which has a pointer to it.
    _flag: FaultFlag,
}

impl FaultGuard {
    /// Guards the mapping of `len` bytes from `start` on. It must consist of whole pages of its file system and outlive
    /// the guard.
    pub fn new(start: usize, len: usize, flag: &FaultFlag) -> io::Result<FaultGuard> {
        install()?;
        let free = ENTRIES
            .iter()
            .position(|entry| entry.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok());
        let Some(index) = free else {
            return Err(io::Error::other(format!("{GUARDS_MAX} mappings of guests' memory are in use")));
        };
        USED.fetch_max(index + 1, Ordering::Release);
        ENTRIES[index].set(start, len, Arc::as_ptr(&flag.0).cast_mut());
        Ok(FaultGuard { index, _flag: flag.clone() })
    }
}

impl Drop for FaultGuard {
    fn drop(&mut self) {
        let entry = &ENTRIES[self.index];
        entry.set(0, 0, std::ptr::null_mut());
        entry.taken.store(false, Ordering::Release);
    }
}

/// Installs the handler, once per process.
fn install() -> io::Result<()> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _lock = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    if PREVIOUS_HANDLER.get().is_some() {
        return Ok(());
    }
    let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: queries the present handler; the result has room.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), previous.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has filled the structure.
    PREVIOUS_HANDLER.get_or_init(|| unsafe { previous.assume_init() });
    // SAFETY: zeroes are a valid value of this plain structure.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_bus_error as *const () as usize;
    // On the thread's alternate signal stack: the normal stack may be exhausted.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: a handler of the type that SA_SIGINFO requires; it calls only async-signal-safe functions.
    let installed = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
    // Signal and structure are valid, and the call has no other reason to fail.
    assert_eq!(installed, 0, "sigaction: {}", io::Error::last_os_error());
    Ok(())
}

extern "C" fn on_bus_error(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a complete structure to a handler with SA_SIGINFO. Codes above 0 are from the kernel
    // and have an address.
    let address = unsafe { ((*info).si_code > 0).then(|| (*info).si_addr() as usize) };
    // SAFETY: the thread's own errno.
    let errno = unsafe { *libc::__errno_location() };
    let is_handled = address.is_some_and(map_zeroes_over);
    // SAFETY: as above; the interrupted code must not see a changed errno.
    unsafe { *libc::__errno_location() = errno };
    if !is_handled {
        call_previous_handler(signal, info, context, address.is_some());
    }
}

/// Maps zeroes over the guarded mapping that contains `address`; false if there is none.
fn map_zeroes_over(address: usize) -> bool {
    let used = USED.load(Ordering::Acquire);
    let Some((start, len, flag)) = ENTRIES[..used].iter().find_map(|entry| entry.containing(address)) else {
        return false;
    };
    // SAFETY: the guard holds the flag and lives as long as the mapping, which this thread is using. The flag is set
    // before the zeroes become visible.
    unsafe { (*flag).store(true, Ordering::SeqCst) };
    // SAFETY: replaces a mapping of this process that is guarded as a whole; its owner unmaps the same range later.
    let mapped = unsafe {
        libc::mmap(
            start as *mut c_void,
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    mapped != libc::MAP_FAILED
}

/// Calls the previous handler, or restores the default action.
fn call_previous_handler(signal: c_int, info: *mut siginfo_t, context: *mut c_void, will_recur: bool) {
    let previous = PREVIOUS_HANDLER.get();
    match previous.map_or((libc::SIG_DFL, 0), |previous| (previous.sa_sigaction, previous.sa_flags)) {
        (libc::SIG_DFL | libc::SIG_IGN, _) => {
            // SAFETY: zeroes are a valid value of this plain structure and mean the default action, which ends the
            // process.
            unsafe {
                let default: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, &raw const default, std::ptr::null_mut());
            }
            // A real fault recurs when the access is repeated; a signal sent by a process does not.
            if !will_recur {
                // SAFETY: raise is async-signal-safe.
                unsafe { libc::raise(signal) };
            }
        }
        (handler, flags) if flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: a handler installed with SA_SIGINFO has this type.
            let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        (handler, _) => {
            // SAFETY: a handler installed without SA_SIGINFO has this type.
            let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsRawFd, FromRawFd};
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    const LEN: usize = 4 * 4096;
    /// Environment variable that marks the child process of a test, which a signal is expected to end.
    const CHILD: &str = "HOTSET_FAULT_TEST_CHILD";

    /// A shared file and its mapping.
    struct SharedMapping {
        file: File,
        start: *mut u8,
    }

    impl SharedMapping {
        fn new() -> SharedMapping {
            // SAFETY: the kernel has just created this descriptor, and it has no other owner.
            let file = unsafe { File::from_raw_fd(libc::memfd_create(c"shared".as_ptr(), libc::MFD_CLOEXEC)) };
            file.set_len(LEN as u64).expect("the file can grow");
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping at an address chosen by the kernel.
            let start = unsafe { libc::mmap(std::ptr::null_mut(), LEN, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) };
            assert_ne!(start, libc::MAP_FAILED);
            SharedMapping { file, start: start.cast() }
        }

        fn read(&self, at: usize) -> u8 {
            assert!(at < LEN);
            // SAFETY: inside the mapping.
            unsafe { self.start.add(at).read_volatile() }
        }

        fn write(&self, at: usize, value: u8) {
            assert!(at < LEN);
            // SAFETY: inside the mapping.
            unsafe { self.start.add(at).write_volatile(value) };
        }
    }

    impl Drop for SharedMapping {
        fn drop(&mut self) {
            // SAFETY: mapped with this length in `new`.
            unsafe { libc::munmap(self.start.cast(), LEN) };
        }
    }

    #[test]
    fn truncated_file_sets_only_its_owner_s_flag() {
        let [mine, other] = [(); 2].map(|()| SharedMapping::new());
        let [my_flag, other_flag] = [(); 2].map(|()| FaultFlag::default());
        let guard = FaultGuard::new(mine.start as usize, LEN, &my_flag).expect("a free entry");
        let _other_guard = FaultGuard::new(other.start as usize, LEN, &other_flag).expect("a free entry");
        mine.write(0, 7);
        other.write(0, 7);
        mine.file.set_len(4096).expect("the file can shrink");
        assert_eq!((mine.read(0), my_flag.is_set()), (7, false), "an access to a present page is no fault");
        mine.write(4096, 9);
        assert!(my_flag.is_set() && !other_flag.is_set());
        assert_eq!((mine.read(0), mine.read(4096), other.read(0)), (0, 9, 7), "zeroes, and later writes");
        drop(guard);
        assert!(ENTRIES.iter().all(|entry| entry.containing(mine.start as usize).is_none()));
    }

    #[test]
    fn thread_survives_its_fault_in_guarded_memory() {
        let shared = SharedMapping::new();
        let flag = FaultFlag::default();
        let _guard = FaultGuard::new(shared.start as usize, LEN, &flag).expect("a free entry");
        shared.file.set_len(0).expect("the file can shrink");
        let start = shared.start as usize;
        let read = std::thread::spawn(move || {
            // SAFETY: inside the mapping, which outlives the thread.
            unsafe { (start as *const u8).add(8192).read_volatile() }
        });
        assert_eq!(read.join().expect("the thread survives the fault"), 0);
        assert!(flag.is_set());
    }

    /// Child half of the test below; it ends its own process.
    #[test]
    fn a_fault_outside_of_guarded_memory() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        let (guarded, other) = (SharedMapping::new(), SharedMapping::new());
        let _guard = FaultGuard::new(guarded.start as usize, LEN, &FaultFlag::default()).expect("a free entry");
        other.file.set_len(0).expect("the file can shrink");
        other.read(0);
    }

    #[test]
    fn a_fault_outside_of_guarded_memory_ends_the_process() {
        let test = std::env::current_exe().expect("the test knows its own path");
        let mut child = Command::new(test);
        child.args(["--exact", "real::fault::tests::a_fault_outside_of_guarded_memory"]).env(CHILD, "1");
        let output = child.output().expect("the child process runs");
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
    }
}
