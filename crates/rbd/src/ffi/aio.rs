//! Requests to an image that complete on a thread of librbd.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use super::image::Image;
use super::library::Handle;

/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`.
const THICK_PROVISION: c_int = 1;

/// A request.
#[derive(Debug)]
pub enum Operation {
    /// Fills the buffer from that offset on.
    Read(u64),
    /// Writes the buffer at that offset.
    Write(u64),
    /// Zeroes a range; the space may be released if `may_unmap`.
    Zero {
        /// Offset.
        at: u64,
        /// Length.
        len: usize,
        /// The space may be released.
        may_unmap: bool,
    },
    /// Makes completed writes durable.
    Flush,
}

/// Called once with the result (an error number, positive) and the buffer, on a thread of librbd.
pub type Completion = Box<dyn FnOnce(Result<(), i32>, Vec<u8>) + Send>;

/// A request in flight: it owns its buffer.
struct InFlight {
    image: Arc<Image>,
    buffer: Vec<u8>,
    completion: Completion,
}

impl Image {
    /// Starts a request. `completion` is called in every case.
    pub fn start(self: &Arc<Self>, operation: Operation, buffer: Vec<u8>, completion: Completion) {
        let in_flight = Box::into_raw(Box::new(InFlight { image: Arc::clone(self), buffer, completion }));
        let mut handle = ptr::null_mut();
        // SAFETY: `in_flight` stays valid until `complete` frees it. The buffer belongs to it and does not move. Either
        // the request was accepted, and librbd calls `complete` once; or it was not, and this function does.
        unsafe {
            let mut code = (self.rbd().rbd_aio_create_completion)(in_flight.cast::<c_void>(), complete, &mut handle);
            if code < 0 {
                return finish(in_flight, code as isize);
            }
            let buffer: &mut Vec<u8> = &mut (*in_flight).buffer;
            let (bytes, len) = (buffer.as_mut_ptr().cast::<c_char>(), buffer.len());
            let rbd = self.rbd();
            code = match operation {
                Operation::Read(at) => (rbd.rbd_aio_read)(self.image, at, len, bytes, handle),
                Operation::Write(at) => (rbd.rbd_aio_write)(self.image, at, len, bytes, handle),
                Operation::Zero { at, len, may_unmap } => {
                    let flags = if may_unmap { 0 } else { THICK_PROVISION };
                    (rbd.rbd_aio_write_zeroes)(self.image, at, len, handle, flags, 0)
                }
                Operation::Flush => (rbd.rbd_aio_flush)(self.image, handle),
            };
            if code < 0 {
                (rbd.rbd_aio_release)(handle);
                finish(in_flight, code as isize);
            }
        }
    }
}

/// The callback of a completion.
extern "C" fn complete(handle: Handle, in_flight: *mut c_void) {
    let in_flight = in_flight.cast::<InFlight>();
    // SAFETY: librbd calls this once for each request that it accepted, with the pointer from `Image::start`.
    unsafe {
        let image: &Image = &(*in_flight).image;
        let rbd = image.rbd();
        let code = (rbd.rbd_aio_get_return_value)(handle);
        (rbd.rbd_aio_release)(handle);
        finish(in_flight, code);
    }
}

/// Frees a request and calls its completion.
///
/// # Safety
///
/// `in_flight` comes from `Box::into_raw`, and librbd uses it no longer.
unsafe fn finish(in_flight: *mut InFlight, code: isize) {
    // SAFETY: by the condition above.
    let InFlight { buffer, completion, .. } = *unsafe { Box::from_raw(in_flight) };
    completion(if code < 0 { Err(-code as i32) } else { Ok(()) }, buffer);
}
