//! An open image: its facts, its exclusive lock, its allocation.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::{Arc, OnceLock};

use rbd::ImageSpec;

use super::cluster::{CephError, Cluster, c_string, check, check_at, text_of};
use super::header_changes::{HeaderChanges, notify_changes};
use super::library::{Handle, RawOption, RawWatcher, RbdFunctions};

/// `RBD_LOCK_MODE_EXCLUSIVE`.
const EXCLUSIVE: c_int = 0;
/// `RBD_FEATURE_EXCLUSIVE_LOCK`.
const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;
/// Room for the ID of an image, in bytes.
const ID_BYTES: usize = 128;
/// Owners of a lock that are listed. An exclusive one has at most one.
const OWNERS_MAX: usize = 8;
/// First room for the list of an image's clients; it doubles.
const WATCHERS_ROOM: usize = 64;
/// Largest room.
const WATCHERS_MAX: usize = 1 << 16;
/// Name of the exclusive lock on an image's header.
const LOCK_NAME: &CStr = c"rbd_lock";
/// Room for each fact about the holders of a lock, in bytes.
const LOCKER_BYTES: usize = 1024;
/// Key of the owner's record in an image's metadata.
const OWNER_KEY: &CStr = c"hotset.owner";
/// Key of the mark of undestaged data.
const UNDESTAGED_KEY: &CStr = c"hotset.undestaged";
/// Key of the names of data that take-overs have destaged.
const DESTAGED_KEY: &CStr = c"hotset.destaged";
/// Room for a metadata value, in bytes.
const METADATA_BYTES: usize = 1024;
/// Room for options. Ceph 20 has about 70.
const OPTIONS_MAX: usize = 256;
/// `RBD_CONFIG_SOURCE_POOL`.
const SOURCE_POOL: c_int = 1;
/// `RBD_CONFIG_SOURCE_IMAGE`.
const SOURCE_IMAGE: c_int = 2;

/// Where an option is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionLevel {
    /// By this process, the configuration file or the cluster.
    Client,
    /// For the pool.
    Pool,
    /// For the image.
    Image,
}

/// An option in effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageOption {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Where it is set.
    pub level: OptionLevel,
}

/// A client that has an image open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watcher {
    /// Its address.
    pub address: String,
    /// Its number.
    pub id: i64,
}

/// A function of librbd that opens an image by its name or its ID.
// SAFETY: the type of `rbd_open`; each call says why it is sound.
type OpenFunction = unsafe extern "C" fn(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;

/// An open image.
pub struct Image {
    pub(super) image: Handle,
    /// Stays connected until the image is closed.
    cluster: Arc<Cluster>,
    /// `POOL/IMAGE`, for messages.
    name: String,
    /// The handle of [`Image::watch_header`].
    header_watch: OnceLock<u64>,
    /// Open for reading only.
    is_read_only: bool,
}

/// A holder of a lock.
struct Locker {
    cookie: CString,
    address: String,
}

// SAFETY: librbd is thread-safe; its handles belong to no thread.
unsafe impl Send for Image {}
// SAFETY: as above: calls of several threads on one handle are allowed.
unsafe impl Sync for Image {}

impl Image {
    /// Opens an image for writing, by its ID if that is known: it may have been renamed. That acquires no lock.
    pub fn open(cluster: &Arc<Cluster>, spec: &ImageSpec, id: Option<&str>) -> Result<Image, CephError> {
        let rbd = &cluster.libraries.rbd;
        let open = if id.is_some() { rbd.rbd_open_by_id } else { rbd.rbd_open };
        Image::open_by(open, cluster, spec, id.unwrap_or(&spec.image))
    }

    /// Opens an image for reading only: it does not appear among its clients.
    pub fn open_read_only(cluster: &Arc<Cluster>, spec: &ImageSpec) -> Result<Image, CephError> {
        let mut image = Image::open_by(cluster.libraries.rbd.rbd_open_read_only, cluster, spec, &spec.image)?;
        image.is_read_only = true;
        Ok(image)
    }

    fn open_by(open: OpenFunction, cluster: &Arc<Cluster>, spec: &ImageSpec, text: &str) -> Result<Image, CephError> {
        let (mut image, text) = (ptr::null_mut(), c_string(text));
        // SAFETY: the pool is open, the name or ID is a C string, and no snapshot is named.
        let code = unsafe { open(cluster.pool, text.as_ptr(), &mut image, ptr::null()) };
        let name = spec.place();
        check_at("rbd_open", &name, code)?;
        Ok(Image { image, cluster: Arc::clone(cluster), name, header_watch: OnceLock::new(), is_read_only: false })
    }

    /// `POOL/IMAGE`, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn rbd(&self) -> &'static RbdFunctions {
        &self.cluster.libraries.rbd
    }

    /// The cluster.
    pub fn cluster(&self) -> &Arc<Cluster> {
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

    /// Notifies of changes to the header from now on. Called once.
    pub fn watch_header(&self) -> Result<&'static HeaderChanges, CephError> {
        let changes: &'static HeaderChanges = Box::leak(Box::default());
        let (mut handle, target) = (0, ptr::from_ref(changes).cast_mut().cast::<c_void>());
        // SAFETY: the image is open, and the target of the callback lives for as long as the process.
        let code = unsafe { (self.rbd().rbd_update_watch)(self.image, &mut handle, notify_changes, target) };
        check("rbd_update_watch", code)?;
        self.header_watch.get_or_init(|| handle);
        Ok(changes)
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

    /// Acquires the exclusive lock, or fails. librbd does not hand it over, but after a loss it acquires it again by
    /// itself.
    pub fn acquire_lock(&self) -> Result<(), CephError> {
        // SAFETY: the image is open.
        check("rbd_lock_acquire", unsafe { (self.rbd().rbd_lock_acquire)(self.image, EXCLUSIVE) })
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
        if self.is_read_only {
            // librbd answers no question about the lock of such an image.
            return Ok(self.locker()?.map(|locker| locker.address));
        }
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

    /// Writes data and time stamps that are in flight.
    pub fn flush(&self) -> Result<(), CephError> {
        // SAFETY: the image is open.
        check("rbd_flush", unsafe { (self.rbd().rbd_flush)(self.image) })
    }

    /// The name of the object that has the image's header, its lock and its metadata.
    fn header(&self) -> Result<CString, CephError> {
        Ok(c_string(&format!("rbd_header.{}", self.id()?)))
    }

    /// The version of the image's header. Each acquisition and each release of the lock changes it, and so does each
    /// change of the image's size, snapshots and metadata; reads, and opening and closing the image, do not.
    pub fn header_version(&self) -> Result<u64, CephError> {
        let (header, rados, pool) = (self.header()?, &self.cluster.libraries.rados, self.cluster.pool);
        let _calls = self.cluster.versioned_calls();
        let (mut size, mut modified) = (0, 0);
        // SAFETY: the pool is open, the name is a C string, and the results have the types of the declaration.
        unsafe {
            check("rados_stat", (rados.rados_stat)(pool, header.as_ptr(), &mut size, &mut modified))?;
            Ok((rados.rados_get_last_version)(pool))
        }
    }

    /// Releases the lock of this process, and returns the version that this gives the header;
    /// `None` if the lock is not this process's. The image must be closed next: librbd does not know of the release.
    ///
    /// `rbd_lock_release` reports no version, and a version that is read later may include the lock of another client.
    pub fn unlock(&self) -> Result<Option<u64>, CephError> {
        let (header, rados, pool) = (self.header()?, &self.cluster.libraries.rados, self.cluster.pool);
        let _calls = self.cluster.versioned_calls();
        let Some(locker) = self.locker()? else { return Ok(None) };
        // SAFETY: the pool is open, and the names are C strings.
        unsafe {
            // Unlocks nothing if the cookie is another client's.
            match (rados.rados_unlock)(pool, header.as_ptr(), LOCK_NAME.as_ptr(), locker.cookie.as_ptr()) {
                code if code == -libc::ENOENT => Ok(None),
                code => check("rados_unlock", code).map(|()| Some((rados.rados_get_last_version)(pool))),
            }
        }
    }

    /// The only holder of the lock; `None` if there is none, or several.
    fn locker(&self) -> Result<Option<Locker>, CephError> {
        let (header, rados, pool) = (self.header()?, &self.cluster.libraries.rados, self.cluster.pool);
        let [mut tag, mut clients, mut cookies, mut addresses] = [[0 as c_char; LOCKER_BYTES]; 4];
        let [mut tag_len, mut clients_len, mut cookies_len, mut addresses_len] = [LOCKER_BYTES; 4];
        let mut is_exclusive = 0;
        // SAFETY: the pool is open, the names are C strings, and each buffer has the length that is passed with it.
        // After a success the buffers have as many C strings as there are lockers.
        unsafe {
            let count = (rados.rados_list_lockers)(
                pool,
                header.as_ptr(),
                LOCK_NAME.as_ptr(),
                &mut is_exclusive,
                tag.as_mut_ptr(),
                &mut tag_len,
                clients.as_mut_ptr(),
                &mut clients_len,
                cookies.as_mut_ptr(),
                &mut cookies_len,
                addresses.as_mut_ptr(),
                &mut addresses_len,
            );
            check("rados_list_lockers", count as i32)?;
            if count != 1 {
                return Ok(None);
            }
            let cookie = CStr::from_ptr(cookies.as_ptr()).to_owned();
            let address = CStr::from_ptr(addresses.as_ptr()).to_string_lossy().into_owned();
            Ok(Some(Locker { cookie, address }))
        }
    }

    /// The record of the owner in the image's metadata.
    pub fn owner(&self) -> Result<Option<String>, CephError> {
        self.metadata(OWNER_KEY)
    }

    /// Replaces the record of the owner.
    pub fn set_owner(&self, text: &str) -> Result<(), CephError> {
        self.set_metadata(OWNER_KEY, text)
    }

    /// The mark of undestaged data in the image's metadata.
    pub fn undestaged(&self) -> Result<Option<String>, CephError> {
        self.metadata(UNDESTAGED_KEY)
    }

    /// Replaces that mark, or removes it.
    pub fn set_undestaged(&self, text: Option<&str>) -> Result<(), CephError> {
        let Some(text) = text else {
            // SAFETY: the image is open, the key is a C string.
            let code = unsafe { (self.rbd().rbd_metadata_remove)(self.image, UNDESTAGED_KEY.as_ptr()) };
            return if code == -libc::ENOENT { Ok(()) } else { check("rbd_metadata_remove", code) };
        };
        self.set_metadata(UNDESTAGED_KEY, text)
    }

    /// The names of data that take-overs have destaged.
    pub fn destaged(&self) -> Result<Option<String>, CephError> {
        self.metadata(DESTAGED_KEY)
    }

    /// Replaces these names.
    pub fn set_destaged(&self, text: &str) -> Result<(), CephError> {
        self.set_metadata(DESTAGED_KEY, text)
    }

    fn metadata(&self, key: &CStr) -> Result<Option<String>, CephError> {
        let (mut bytes, mut len) = ([0; METADATA_BYTES], METADATA_BYTES);
        // SAFETY: the image is open, the key is a C string, and the buffer has that length.
        let code = unsafe {
            let value = bytes.as_mut_ptr().cast::<c_char>();
            (self.rbd().rbd_metadata_get)(self.image, key.as_ptr(), value, &mut len)
        };
        match code {
            code if code == -libc::ENOENT => Ok(None),
            // A longer value is none of hotset's.
            code if code == -libc::ERANGE => Ok(Some(String::new())),
            code => check("rbd_metadata_get", code).map(|()| Some(text_of(&bytes))),
        }
    }

    fn set_metadata(&self, key: &CStr, text: &str) -> Result<(), CephError> {
        let text = c_string(text);
        // SAFETY: the image is open, key and value are C strings.
        let code = unsafe { (self.rbd().rbd_metadata_set)(self.image, key.as_ptr(), text.as_ptr()) };
        check("rbd_metadata_set", code)
    }

    /// The options in effect for the image.
    pub fn options(&self) -> Result<Vec<ImageOption>, CephError> {
        let empty = || RawOption { name: ptr::null_mut(), value: ptr::null_mut(), source: 0 };
        let mut options: Vec<RawOption> = std::iter::repeat_with(empty).take(OPTIONS_MAX).collect();
        let mut count = OPTIONS_MAX as c_int;
        // SAFETY: the array has room for that many entries. After a success the first `count` are filled, and their
        // names and values are C strings, which are freed once.
        unsafe {
            let code = (self.rbd().rbd_config_image_list)(self.image, options.as_mut_ptr(), &mut count);
            check("rbd_config_image_list", code)?;
            let text = |text: *const c_char| CStr::from_ptr(text).to_string_lossy().into_owned();
            let list = options[..count as usize].iter().map(|option| ImageOption {
                name: text(option.name),
                value: text(option.value),
                level: match option.source {
                    SOURCE_POOL => OptionLevel::Pool,
                    SOURCE_IMAGE => OptionLevel::Image,
                    _ => OptionLevel::Client,
                },
            });
            let list = list.collect();
            (self.rbd().rbd_config_image_list_cleanup)(options.as_mut_ptr(), count);
            Ok(list)
        }
    }

    /// True if the data lies in the objects one after the other, without striping.
    pub fn is_sequential(&self) -> Result<bool, CephError> {
        let (mut unit, mut count) = (0, 0);
        // SAFETY: the image is open.
        unsafe {
            check("rbd_get_stripe_unit", (self.rbd().rbd_get_stripe_unit)(self.image, &mut unit))?;
            check("rbd_get_stripe_count", (self.rbd().rbd_get_stripe_count)(self.image, &mut count))?;
        }
        Ok(count <= 1)
    }

    /// The clients that have the image open and are alive.
    pub fn watchers(&self) -> Result<Vec<Watcher>, CephError> {
        let mut room = WATCHERS_ROOM;
        loop {
            let empty = || RawWatcher { address: ptr::null_mut(), id: 0, cookie: 0 };
            let mut watchers: Vec<RawWatcher> = std::iter::repeat_with(empty).take(room).collect();
            let mut count = watchers.len();
            // SAFETY: the array has room for that many entries. After a success the first `count` are filled, and their
            // addresses are C strings, which are freed once.
            unsafe {
                let code = (self.rbd().rbd_watchers_list)(self.image, watchers.as_mut_ptr(), &mut count);
                if code == -libc::ERANGE && room < WATCHERS_MAX {
                    room *= 2;
                    continue;
                }
                check("rbd_watchers_list", code)?;
                let address = |watcher: &RawWatcher| CStr::from_ptr(watcher.address).to_string_lossy().into_owned();
                let list = watchers[..count].iter();
                let list = list.map(|watcher| Watcher { address: address(watcher), id: watcher.id }).collect();
                (self.rbd().rbd_watchers_list_cleanup)(watchers.as_mut_ptr(), count);
                return Ok(list);
            }
        }
    }

    /// The address of this process as a RADOS client, under which it has the image open.
    pub fn own_address(&self) -> Result<String, CephError> {
        let own = self.cluster.client_id() as i64;
        let watcher = self.watchers()?.into_iter().find(|watcher| watcher.id == own);
        watcher.map(|watcher| watcher.address).ok_or(CephError {
            call: "rbd_watchers_list",
            place: " without this client".to_owned(),
            errno: libc::ENOTCONN,
        })
    }

    /// The allocated ranges of `len` bytes from `at` on, as offset and length, in any order. Ranges count as allocated
    /// by whole objects.
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
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: the image is open, it is closed once, before its cluster, and no request is in flight: each one has a
        // handle of its own. librbd closes no image with a registered watch. An error leaves nothing to do.
        unsafe {
            if let Some(watch) = self.header_watch.get() {
                let _ = (self.rbd().rbd_update_unwatch)(self.image, *watch);
            }
            let _ = (self.rbd().rbd_close)(self.image);
        }
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
