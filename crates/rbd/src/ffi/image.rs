//! An open image: its facts, its exclusive lock, its allocation.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use rbd::ImageSpec;

use super::cluster::{CephError, Cluster, c_string, check, text_of};
use super::library::{Handle, RawWatcher, RbdFunctions};

/// `RBD_LOCK_MODE_EXCLUSIVE`.
const EXCLUSIVE: c_int = 0;
/// `RBD_FEATURE_EXCLUSIVE_LOCK`.
const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;
/// Room for the ID of an image, in bytes.
const ID_BYTES: usize = 128;
/// Owners of a lock that are listed. An exclusive one has at most one.
const OWNERS_MAX: usize = 8;
/// Clients of an image that are listed.
const WATCHERS_MAX: usize = 64;

/// A client that has an image open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watcher {
    /// Its address.
    pub address: String,
    /// Its number.
    pub id: i64,
}

/// An image that is open for writing.
pub struct Image {
    pub(super) image: Handle,
    /// Stays connected until the image is closed.
    cluster: Cluster,
}

// SAFETY: librbd is thread-safe; its handles belong to no thread.
unsafe impl Send for Image {}
// SAFETY: as above: calls of several threads on one handle are allowed.
unsafe impl Sync for Image {}

impl Image {
    /// Opens an image. That acquires no lock.
    pub fn open(cluster: Cluster, spec: &ImageSpec) -> Result<Image, CephError> {
        let mut image = ptr::null_mut();
        let name = c_string(&spec.image);
        // SAFETY: the pool is open, the name is a C string, and no snapshot is named.
        let code = unsafe { (cluster.libraries.rbd.rbd_open)(cluster.pool, name.as_ptr(), &mut image, ptr::null()) };
        check("rbd_open", code)?;
        Ok(Image { image, cluster })
    }

    pub(super) fn rbd(&self) -> &'static RbdFunctions {
        &self.cluster.libraries.rbd
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The ID of the image, which no other image of its pool ever has.
    pub fn id(&self) -> Result<String, CephError> {
        let mut bytes = [0; ID_BYTES];
        // SAFETY: the buffer has that length.
        let code = unsafe { (self.rbd().rbd_get_id)(self.image, bytes.as_mut_ptr().cast::<c_char>(), bytes.len()) };
        check("rbd_get_id", code)?;
        Ok(text_of(&bytes))
    }

    /// The present size in bytes.
    pub fn size_bytes(&self) -> Result<u64, CephError> {
        let mut size_bytes = 0;
        // SAFETY: the image is open.
        check("rbd_get_size", unsafe { (self.rbd().rbd_get_size)(self.image, &mut size_bytes) })?;
        Ok(size_bytes)
    }

    /// True if the image has the feature `exclusive-lock`.
    pub fn has_exclusive_lock(&self) -> Result<bool, CephError> {
        let mut features = 0;
        // SAFETY: the image is open.
        check("rbd_get_features", unsafe { (self.rbd().rbd_get_features)(self.image, &mut features) })?;
        Ok(features & FEATURE_EXCLUSIVE_LOCK != 0)
    }

    /// Acquires the exclusive lock, or fails. From then on librbd neither hands it over nor acquires it by itself.
    pub fn acquire_lock(&self) -> Result<(), CephError> {
        // SAFETY: the image is open.
        check("rbd_lock_acquire", unsafe { (self.rbd().rbd_lock_acquire)(self.image, EXCLUSIVE) })
    }

    /// Releases the exclusive lock.
    pub fn release_lock(&self) -> Result<(), CephError> {
        // SAFETY: the image is open.
        check("rbd_lock_release", unsafe { (self.rbd().rbd_lock_release)(self.image) })
    }

    /// Takes the lock from `owner`, whose client can then write nothing any more: the cluster blocks it.
    pub fn break_lock(&self, owner: &str) -> Result<(), CephError> {
        let owner = c_string(owner);
        // SAFETY: the image is open, and the owner is a C string.
        check("rbd_lock_break", unsafe { (self.rbd().rbd_lock_break)(self.image, EXCLUSIVE, owner.as_ptr()) })
    }

    /// True if this process has the lock. Asks the storage.
    pub fn is_lock_owner(&self) -> Result<bool, CephError> {
        let mut is_owner = 0;
        // SAFETY: the image is open.
        let code = unsafe { (self.rbd().rbd_is_exclusive_lock_owner)(self.image, &mut is_owner) };
        check("rbd_is_exclusive_lock_owner", code)?;
        Ok(is_owner != 0)
    }

    /// The address of the client that has the lock, dead or alive; `None` if no client has it.
    pub fn lock_owner(&self) -> Result<Option<String>, CephError> {
        let mut owners = [ptr::null_mut::<c_char>(); OWNERS_MAX];
        let (mut count, mut mode) = (OWNERS_MAX, 0);
        // SAFETY: the array has room for that many pointers. After a success the first `count` are C strings, which are
        // freed once.
        unsafe {
            let code = (self.rbd().rbd_lock_get_owners)(self.image, &mut mode, owners.as_mut_ptr(), &mut count);
            if code == -libc::ENOENT {
                return Ok(None);
            }
            check("rbd_lock_get_owners", code)?;
            let first = owners[..count].first().map(|owner| CStr::from_ptr(*owner).to_string_lossy().into_owned());
            (self.rbd().rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count);
            Ok(first)
        }
    }

    /// The clients that have the image open and are alive.
    pub fn watchers(&self) -> Result<Vec<Watcher>, CephError> {
        let mut watchers = [const { RawWatcher { address: ptr::null_mut(), id: 0, cookie: 0 } }; WATCHERS_MAX];
        let mut count = WATCHERS_MAX;
        // SAFETY: the array has room for that many entries. After a success the first `count` are filled, and their
        // addresses are C strings, which are freed once.
        unsafe {
            let code = (self.rbd().rbd_watchers_list)(self.image, watchers.as_mut_ptr(), &mut count);
            check("rbd_watchers_list", code)?;
            let address = |watcher: &RawWatcher| CStr::from_ptr(watcher.address).to_string_lossy().into_owned();
            let list =
                watchers[..count].iter().map(|watcher| Watcher { address: address(watcher), id: watcher.id }).collect();
            (self.rbd().rbd_watchers_list_cleanup)(watchers.as_mut_ptr(), count);
            Ok(list)
        }
    }

    /// The allocated ranges of `len` bytes from `at` on, as offset and length, in order. Ranges count as allocated by
    /// whole objects.
    pub fn allocated(&self, at: u64, len: u64) -> Result<Vec<(u64, u64)>, CephError> {
        let mut extents: Vec<(u64, u64)> = Vec::new();
        // SAFETY: the image is open; the callback runs during the call only, with a pointer to `extents`.
        let code = unsafe {
            (self.rbd().rbd_diff_iterate2)(
                self.image,
                ptr::null(),
                at,
                len,
                1,
                1,
                add_extent,
                ptr::from_mut(&mut extents).cast::<c_void>(),
            )
        };
        check("rbd_diff_iterate2", code)?;
        Ok(extents)
    }

    /// Closes the image, and the connection to its cluster. No request may be in flight.
    pub fn close(self) -> Result<(), CephError> {
        // SAFETY: the image is open, and no handle to it remains.
        check("rbd_close", unsafe { (self.rbd().rbd_close)(self.image) })
    }
}

/// Appends an allocated extent to the list at `extents`.
extern "C" fn add_extent(at: u64, len: usize, exists: c_int, extents: *mut c_void) -> c_int {
    // SAFETY: `Image::allocated` passes its list, which nothing else uses during the call.
    let extents = unsafe { &mut *extents.cast::<Vec<(u64, u64)>>() };
    if exists != 0 {
        extents.push((at, len as u64));
    }
    0
}
