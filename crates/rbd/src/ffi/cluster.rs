//! A connection to a cluster, and one pool of it.

use std::ffi::{CStr, CString, c_char};
use std::io;
use std::path::Path;
use std::ptr;

use rbd::ImageSpec;

use super::library::{Handle, Libraries};

/// Length of a cluster's fsid, with the zero byte.
const FSID_BYTES: usize = 37;

/// A failed call of librados or librbd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {}", io::Error::from_raw_os_error(*errno))]
pub struct CephError {
    /// The function.
    pub call: &'static str,
    /// The error number, positive.
    pub errno: i32,
}

/// The result of a call: `code` is negative for an error.
pub(super) fn check(call: &'static str, code: i32) -> Result<(), CephError> {
    if code < 0 { Err(CephError { call, errno: -code }) } else { Ok(()) }
}

pub(super) fn c_string(text: &str) -> CString {
    CString::new(text).expect("an address of an image has no control characters")
}

/// A connected client of a cluster with the pool of an image.
pub struct Cluster {
    pub(super) libraries: &'static Libraries,
    cluster: Handle,
    /// The pool, with the namespace of the image.
    pub(super) pool: Handle,
}

// SAFETY: librados is thread-safe; its handles belong to no thread.
unsafe impl Send for Cluster {}
// SAFETY: as above: calls of several threads on one handle are allowed.
unsafe impl Sync for Cluster {}

impl Cluster {
    /// Connects to the cluster, which may take as long as the cluster is away, and opens the pool.
    pub fn connect(libraries: &'static Libraries, spec: &ImageSpec) -> Result<Cluster, CephError> {
        let rados = &libraries.rados;
        let user = c_string(&format!("client.{}", spec.ceph_user.as_deref().unwrap_or("admin")));
        let conf = spec.ceph_conf.as_deref().map(|path: &Path| c_string(&path.to_string_lossy()));
        let conf = conf.as_ref().map_or(ptr::null(), |conf| conf.as_ptr());
        let mut cluster = Cluster { libraries, cluster: ptr::null_mut(), pool: ptr::null_mut() };
        // SAFETY: the strings are C strings that outlive the calls; the handle is written before a success is returned.
        unsafe {
            let name = c"ceph".as_ptr();
            check("rados_create2", (rados.rados_create2)(&mut cluster.cluster, name, user.as_ptr(), 0))?;
            check("rados_conf_read_file", (rados.rados_conf_read_file)(cluster.cluster, conf))?;
        }
        // The engine is the cache. A second one in librbd would keep data that a flush has to write, and cost memory.
        cluster.set_option(c"rbd_cache", c"false")?;
        // A client whose lock is broken must not write any more.
        cluster.set_option(c"rbd_blocklist_on_break_lock", c"true")?;
        let pool = c_string(&spec.pool);
        // SAFETY: as above; the handle of the cluster is configured.
        unsafe {
            check("rados_connect", (rados.rados_connect)(cluster.cluster))?;
            let open = (rados.rados_ioctx_create)(cluster.cluster, pool.as_ptr(), &mut cluster.pool);
            check("rados_ioctx_create", open)?;
            if let Some(namespace) = &spec.namespace {
                (rados.rados_ioctx_set_namespace)(cluster.pool, c_string(namespace).as_ptr());
            }
        }
        Ok(cluster)
    }

    fn set_option(&self, option: &CStr, value: &CStr) -> Result<(), CephError> {
        // SAFETY: both are C strings, and the handle exists.
        let code = unsafe { (self.libraries.rados.rados_conf_set)(self.cluster, option.as_ptr(), value.as_ptr()) };
        check("rados_conf_set", code)
    }

    /// The identifier of the cluster.
    pub fn fsid(&self) -> Result<String, CephError> {
        let mut bytes = [0; FSID_BYTES];
        // SAFETY: the buffer has that length.
        let code = unsafe {
            (self.libraries.rados.rados_cluster_fsid)(self.cluster, bytes.as_mut_ptr().cast::<c_char>(), bytes.len())
        };
        check("rados_cluster_fsid", code)?;
        Ok(text_of(&bytes))
    }

    /// The number of the pool.
    pub fn pool_id(&self) -> i64 {
        // SAFETY: the pool is open.
        unsafe { (self.libraries.rados.rados_ioctx_get_id)(self.pool) }
    }

    /// The addresses of this client, as librados writes them.
    pub fn own_addresses(&self) -> Result<String, CephError> {
        let mut addresses = ptr::null_mut();
        // SAFETY: after a success the pointer is a C string, which is freed once.
        unsafe {
            check("rados_getaddrs", (self.libraries.rados.rados_getaddrs)(self.cluster, &mut addresses))?;
            let text = CStr::from_ptr(addresses).to_string_lossy().into_owned();
            (self.libraries.rados.rados_buffer_free)(addresses);
            Ok(text)
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let rados = &self.libraries.rados;
        // SAFETY: each handle is closed once, the pool before its cluster. An image closes before its cluster drops.
        unsafe {
            if !self.pool.is_null() {
                (rados.rados_ioctx_destroy)(self.pool);
            }
            if !self.cluster.is_null() {
                (rados.rados_shutdown)(self.cluster);
            }
        }
    }
}

/// The text in a buffer, up to its first zero byte.
pub(super) fn text_of(bytes: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(bytes);
    text.map_or_else(|_| String::from_utf8_lossy(bytes), CStr::to_string_lossy).into_owned()
}
