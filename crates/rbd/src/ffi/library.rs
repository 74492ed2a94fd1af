//! Loads librados and librbd at run time.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// Why the libraries cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LoadError {
    /// A library is missing or unusable.
    #[error("cannot load {name} ({reason}); install the package librbd1")]
    Library {
        /// Its file name.
        name: String,
        /// The dynamic linker's reason.
        reason: String,
    },
    /// A library lacks a function.
    #[error("{library} has no {function}; install Ceph's libraries of version 15 or later")]
    Function {
        /// Its file name.
        library: String,
        /// The missing function.
        function: String,
    },
}

/// Declares a table of C functions, and the function that loads it.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident: $(fn $name:ident($($argument:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        $(#[$doc])*
        pub(super) struct $table {
            // SAFETY: the types only declare functions; each call of one argues for itself.
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $table {
            fn load(library: &CStr) -> Result<Self, LoadError> {
                let handle = open(library)?;
                Ok($table {
                    $($name: {
                        let symbol = symbol(handle, library, concat!(stringify!($name), "\0"))?;
                        // SAFETY: the symbol is the function of that name, whose C declaration has these types.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(
                                symbol,
                            )
                        }
                    },)*
                })
            }
        }
    };
}

/// A handle of a C library: a cluster, a pool, an image or a completion.
pub(super) type Handle = *mut c_void;
/// A function that a completion calls.
pub(super) type CompletionCallback = extern "C" fn(Handle, *mut c_void);
/// A function that a comparison calls for each extent: offset, length, existence, argument.
pub(super) type ExtentCallback = extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int;
/// `rbd_update_callback_t`.
pub(super) type UpdateCallback = extern "C" fn(*mut c_void);

/// `rbd_image_watcher_t`.
#[repr(C)]
pub(super) struct RawWatcher {
    pub(super) address: *mut c_char,
    pub(super) id: i64,
    pub(super) cookie: u64,
}

/// `rbd_config_option_t`.
#[repr(C)]
pub(super) struct RawOption {
    pub(super) name: *mut c_char,
    pub(super) value: *mut c_char,
    /// `rbd_config_source_t`.
    pub(super) source: c_int,
}

functions! {
    /// Functions of librados.
    RadosFunctions:
    fn rados_create2(*mut Handle, *const c_char, *const c_char, u64) -> c_int;
    fn rados_conf_read_file(Handle, *const c_char) -> c_int;
    fn rados_conf_set(Handle, *const c_char, *const c_char) -> c_int;
    fn rados_connect(Handle) -> c_int;
    fn rados_shutdown(Handle);
    fn rados_cluster_fsid(Handle, *mut c_char, usize) -> c_int;
    fn rados_get_instance_id(Handle) -> u64;
    fn rados_ioctx_create(Handle, *const c_char, *mut Handle) -> c_int;
    fn rados_ioctx_set_namespace(Handle, *const c_char);
    fn rados_ioctx_get_id(Handle) -> i64;
    fn rados_ioctx_destroy(Handle);
    fn rados_stat(Handle, *const c_char, *mut u64, *mut libc::time_t) -> c_int;
    fn rados_get_last_version(Handle) -> u64;
    fn rados_unlock(Handle, *const c_char, *const c_char, *const c_char) -> c_int;
    fn rados_list_lockers(
        Handle,
        *const c_char,
        *const c_char,
        *mut c_int,
        *mut c_char,
        *mut usize,
        *mut c_char,
        *mut usize,
        *mut c_char,
        *mut usize,
        *mut c_char,
        *mut usize,
    ) -> isize;
}

functions! {
    /// Functions of librbd.
    RbdFunctions:
    fn rbd_open(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    fn rbd_open_read_only(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    fn rbd_open_by_id(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    fn rbd_close(Handle) -> c_int;
    fn rbd_flush(Handle) -> c_int;
    fn rbd_get_stripe_unit(Handle, *mut u64) -> c_int;
    fn rbd_get_stripe_count(Handle, *mut u64) -> c_int;
    fn rbd_metadata_get(Handle, *const c_char, *mut c_char, *mut usize) -> c_int;
    fn rbd_metadata_set(Handle, *const c_char, *const c_char) -> c_int;
    fn rbd_metadata_remove(Handle, *const c_char) -> c_int;
    fn rbd_config_image_list(Handle, *mut RawOption, *mut c_int) -> c_int;
    fn rbd_config_image_list_cleanup(*mut RawOption, c_int);
    fn rbd_get_id(Handle, *mut c_char, usize) -> c_int;
    fn rbd_get_size(Handle, *mut u64) -> c_int;
    fn rbd_get_features(Handle, *mut u64) -> c_int;
    fn rbd_lock_acquire(Handle, c_int) -> c_int;
    fn rbd_lock_break(Handle, c_int, *const c_char) -> c_int;
    fn rbd_lock_get_owners(Handle, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
    fn rbd_lock_get_owners_cleanup(*mut *mut c_char, usize);
    fn rbd_is_exclusive_lock_owner(Handle, *mut c_int) -> c_int;
    fn rbd_watchers_list(Handle, *mut RawWatcher, *mut usize) -> c_int;
    fn rbd_watchers_list_cleanup(*mut RawWatcher, usize);
    fn rbd_update_watch(Handle, *mut u64, UpdateCallback, *mut c_void) -> c_int;
    fn rbd_update_unwatch(Handle, u64) -> c_int;
    fn rbd_diff_iterate2(Handle, *const c_char, u64, u64, u8, u8, ExtentCallback, *mut c_void) -> c_int;
    fn rbd_aio_create_completion(*mut c_void, CompletionCallback, *mut Handle) -> c_int;
    fn rbd_aio_get_return_value(Handle) -> isize;
    fn rbd_aio_release(Handle);
    fn rbd_aio_read(Handle, u64, usize, *mut c_char, Handle) -> c_int;
    fn rbd_aio_write(Handle, u64, usize, *const c_char, Handle) -> c_int;
    fn rbd_aio_flush(Handle, Handle) -> c_int;
    fn rbd_aio_write_zeroes(Handle, u64, usize, Handle, c_int, c_int) -> c_int;
}

/// Both libraries.
pub struct Libraries {
    pub(super) rados: RadosFunctions,
    pub(super) rbd: RbdFunctions,
}

/// Loads both libraries once; they stay loaded.
pub fn load() -> Result<&'static Libraries, LoadError> {
    static LIBRARIES: OnceLock<Result<Libraries, LoadError>> = OnceLock::new();
    let load =
        || Ok(Libraries { rados: RadosFunctions::load(c"librados.so.2")?, rbd: RbdFunctions::load(c"librbd.so.1")? });
    LIBRARIES.get_or_init(load).as_ref().map_err(LoadError::clone)
}

fn open(library: &CStr) -> Result<*mut c_void, LoadError> {
    // SAFETY: the name is a C string; the constructors of Ceph's libraries need nothing of this process.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !handle.is_null() {
        return Ok(handle);
    }
    // SAFETY: after a failure `dlerror` returns a C string that stays valid until the next call of this thread.
    let reason = unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned();
    Err(LoadError::Library { name: library.to_string_lossy().into_owned(), reason })
}

/// The address of a function; `name` ends with a zero byte.
fn symbol(handle: *mut c_void, library: &CStr, name: &'static str) -> Result<*mut c_void, LoadError> {
    // SAFETY: `handle` is an open library, and `name` ends with a zero byte.
    let symbol = unsafe { libc::dlsym(handle, name.as_ptr().cast()) };
    let missing = || LoadError::Function {
        library: library.to_string_lossy().into_owned(),
        function: name.trim_end_matches('\0').to_owned(),
    };
    if symbol.is_null() { Err(missing()) } else { Ok(symbol) }
}
