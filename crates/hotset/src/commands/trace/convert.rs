//! `hotset trace convert`.

use std::fs::{File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde::Serialize;
use tempfile::NamedTempFile;
use trace::{Anonymiser, Format, Header, Lost};

use terminal::{Failure, print_json};
use units::{show_count, show_counted};

use super::{ReadOptions, Source};

/// Counts of a conversion.
#[derive(Serialize)]
struct Report {
    format: &'static str,
    /// Requests read.
    read: u64,
    /// Requests written; more than read if anonymising split some.
    written: u64,
    /// Requests left out because the format lacks their kind.
    left_out: u64,
    /// Requests widened to whole sectors.
    #[serde(rename = "rounded")]
    widened: u64,
    /// Time stamps dropped because the format has none.
    times_lost: u64,
    /// Writes stored as reads because the format has no direction.
    writes_lost: u64,
    /// Requests merged onto one disk because the format has no disk numbers.
    disks_lost: u64,
    /// The error that ended the trace early.
    broken: Option<String>,
}

impl Report {
    fn new(format: Format, (read, written): (u64, u64), lost: Lost, broken: Option<String>) -> Self {
        Report {
            format: format.name(),
            read,
            written: written - lost.requests,
            left_out: lost.requests,
            widened: lost.rounded,
            times_lost: lost.times,
            writes_lost: lost.writes,
            disks_lost: lost.devices,
            broken,
        }
    }

    fn print(&self) {
        let read = show_counted(self.read, "request");
        println!("{read} read, {} written as {}", show_count(self.written), self.format);
        for (count, description) in [
            (self.left_out, "requests left out: the format has no discards and flushes"),
            (self.widened, "requests widened to whole sectors"),
            (self.times_lost, "time stamps dropped: the format has none"),
            (self.writes_lost, "writes stored as reads: the format has no direction"),
            (self.disks_lost, "requests merged onto one disk: the format has no disk numbers"),
        ] {
            if count > 0 {
                println!("{} {description}", show_count(count));
            }
        }
    }
}

/// A random secret key for one trace.
pub fn random_key() -> Result<[u64; 2], Failure> {
    let mut bytes = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    read.map_err(|error| Failure::failed(format!("/dev/urandom: {error}")))?;
    let key = u128::from_le_bytes(bytes);
    Ok([key as u64, (key >> 64) as u64])
}

/// A temporary file that becomes `to` when it is persisted and is deleted otherwise. It has the permissions of any new
/// file under the process's umask.
pub fn new_file(to: &Path) -> Result<NamedTempFile, Failure> {
    let folder = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let created = tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder);
    created.map_err(|error| Failure::failed(format!("{}: {error}", to.display())))
}

/// The end of the address range that the requests of a trace touch, in bytes.
fn address_end(from: &Path, read_options: &ReadOptions) -> Result<u64, Failure> {
    let mut source = Source::open(from, read_options)?;
    let mut end = 0;
    while let Some(request) = source.next()? {
        end = end.max(request.at + request.len);
    }
    Ok(end)
}

/// Converts a trace. A failure leaves no file at `to`; `from` and `to` may be the same.
pub fn run(
    from: &Path,
    to: &Path,
    read_options: &ReadOptions,
    format: Option<Format>,
    anonymise: bool,
    json: bool,
) -> Result<(), Failure> {
    let name = to.display().to_string();
    let format = format.or_else(|| Format::of_name(&name)).unwrap_or(Format::Hotset);
    let mut source = Source::open(from, read_options)?;
    let anonymiser =
        if anonymise { Some(Anonymiser::new(random_key()?, address_end(from, read_options)?)) } else { None };
    let failed = |error: io::Error| Failure::failed(format!("{name}: {error}"));
    let file = new_file(to)?;
    let header = Header { start_unix_ns: 0, anonymised: anonymise };
    let write_error = |error: trace::TraceError| Failure::failed(error.to_string());
    let out = Box::new(file.reopen().map_err(failed)?);
    let mut writer = trace::create(&name, out, format, header).map_err(write_error)?;
    let (mut read, mut written, mut recorded_drops) = (0, 0, 0);
    while let Some(request) = source.next()? {
        read += 1;
        let dropped = source.reader().dropped();
        writer.record_dropped(dropped - std::mem::replace(&mut recorded_drops, dropped)).map_err(write_error)?;
        let Some(anonymiser) = anonymiser else {
            writer.put(&request).map_err(write_error)?;
            written += 1;
            continue;
        };
        for piece in anonymiser.apply(request) {
            writer.put(&piece).map_err(write_error)?;
            written += 1;
        }
    }
    writer.record_dropped(source.reader().dropped() - recorded_drops).map_err(write_error)?;
    let lost = writer.finish().map_err(write_error)?;
    file.persist(to).map_err(|error| failed(error.error))?;
    source.warn(read);
    let report = Report::new(format, (read, written), lost, source.broken.clone());
    if json {
        return print_json(&report);
    }
    report.print();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &Path) -> Vec<trace::Request> {
        let reader = trace::open("a", Box::new(File::open(path).unwrap()), None).unwrap();
        reader.map(Result::unwrap).collect()
    }

    #[test]
    fn conversion_to_the_hotset_format_and_back_is_lossless() {
        let folder = tempfile::tempdir().unwrap();
        let [from, between, back] = ["a.spc", "a.hotset.zst", "b.spc"].map(|name| folder.path().join(name));
        std::fs::write(&from, "0,8,4096,w,0.000000000\n3,128,512,r,1.500000000\n").unwrap();
        let read_options = ReadOptions { format: None, lenient: false };
        run(&from, &between, &read_options, None, false, true).unwrap();
        run(&between, &back, &read_options, None, false, true).unwrap();
        assert_eq!(std::fs::read(&from).unwrap(), std::fs::read(&back).unwrap());
    }

    #[test]
    fn anonymising_moves_requests_together_with_their_neighbours() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to] = ["a.lis", "b"].map(|name| folder.path().join(name));
        let lines: String = (0..1_000).map(|number| format!("{} 8 0 {number}\n", number * 2_048)).collect();
        let pairs: String = (0..1_000).map(|number| format!("{} 8 0 {number}\n", number * 2_048 + 16)).collect();
        std::fs::write(&from, lines + &pairs).unwrap();
        run(&from, &to, &ReadOptions { format: None, lenient: false }, None, true, true).unwrap();
        let (before, after) = (read(&from), read(&to));
        assert_eq!(after.len(), 2_000);
        assert!(before.iter().zip(&after).filter(|(before, after)| before.at == after.at).count() < 40);
        assert!((0..1_000).all(|number| after[number + 1_000].at - after[number].at == 8_192));
        assert!(after.iter().all(|request| request.at < 1_000 << 20));
    }

    #[test]
    fn broken_trace_leaves_no_file_unless_lenient() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to] = ["a.lis", "b.msr"].map(|name| folder.path().join(name));
        std::fs::write(&from, "1 8 0 0\n2 8 0 1\n3 eight 0 2\n4 8 0 3\n").unwrap();
        run(&from, &to, &ReadOptions { format: None, lenient: false }, None, false, true)
            .expect_err("line 3 is invalid");
        assert!(!to.exists());
        run(&from, &to, &ReadOptions { format: None, lenient: true }, None, false, true).unwrap();
        assert_eq!(read(&to).len(), 2);
    }
}
