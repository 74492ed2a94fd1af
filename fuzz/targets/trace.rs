//! Traces in every format, detected or given, on arbitrary bytes. Checks: no panic, bounded requests, and the same
//! requests after a round trip through the Hotset format.

#![no_main]

use std::cell::RefCell;
use std::io::{self, Cursor, Write};
use std::rc::Rc;

use libfuzzer_sys::fuzz_target;
use trace::info::Info;
use trace::{Anonymiser, DISK_BYTES_MAX, Format, Header, Op, Request, TRANSFER_BYTES_MAX, create, open};

/// Buffer that the writer fills and the harness reads.
#[derive(Clone, Default)]
struct SharedBuffer(Rc<RefCell<Vec<u8>>>);

impl Write for SharedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Requests up to the first error.
fn read(bytes: Vec<u8>, format: Option<Format>) -> Vec<Request> {
    let Ok(mut reader) = open("fuzzed", Box::new(Cursor::new(bytes)), format) else { return Vec::new() };
    let requests = reader.by_ref().map_while(Result::ok).collect();
    assert!(reader.next().is_none(), "the reader ends after an error");
    requests
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, bytes)) = data.split_first() else { return };
    let format = Format::ALL.get(usize::from(*kind)).map(|(_, format)| *format);
    let requests = read(bytes.to_vec(), format);
    // Requests may be long, and counting their pages is slow, so only a few are counted.
    let mut info = Info::default();
    for (number, request) in requests.iter().enumerate() {
        assert!(request.at.checked_add(request.len).is_some_and(|end| end <= DISK_BYTES_MAX));
        let transfer = matches!(request.op, Op::Read | Op::Write);
        assert!(!transfer || (1..=TRANSFER_BYTES_MAX).contains(&request.len));
        if number < 16 && request.len < 1 << 24 {
            info.add(request);
            let parts = Anonymiser::new([1, 2], request.at + request.len).apply(*request);
            assert_eq!(parts.map(|part| part.len).sum::<u64>(), request.len);
        }
    }
    let file = SharedBuffer::default();
    let mut writer =
        create("a", Box::new(file.clone()), Format::Hotset, Header::default()).expect("writing to memory cannot fail");
    requests.iter().for_each(|request| writer.put(request).expect("writing to memory cannot fail"));
    writer.finish().expect("writing to memory cannot fail");
    assert!(read(file.0.take(), None) == requests);
});
