//! Edge cases of the NBD protocol, through libnbd.

use e2e::fixture::Fixture;
use e2e::tool::tool;

const MIB: u64 = 1 << 20;

/// Runs a script of libnbd's shell with `h` connected to volume `v`.
fn nbdsh(fixture: &Fixture, script: &str) -> String {
    let uri = fixture.uri("v");
    let connected = format!("uri = '{uri}'\nh.add_meta_context('base:allocation')\nh.connect_uri(uri)\n{script}");
    tool("nbdsh").arg("-c").arg(connected).ok()
}

#[test]
fn structured_replies_carry_data_and_holes() {
    let fixture = Fixture::with_volume(16 * MIB);
    let _daemon = fixture.start();
    nbdsh(
        &fixture,
        r#"
assert h.get_structured_replies_negotiated()
h.pwrite(b'x' * 65536, 1 << 20)
seen = {}
def chunk(buffer, offset, status, error):
    assert error.value == 0
    assert status in (nbd.READ_DATA, nbd.READ_HOLE), status
    seen[offset] = len(buffer)
data = h.pread_structured(4 << 20, 0, chunk)
assert sum(seen.values()) == 4 << 20, seen
assert data[1 << 20:(1 << 20) + 65536] == b'x' * 65536
assert data.count(b'x') == 65536
seen = {}
h.pread_structured(65536, (1 << 20) - 4096, chunk, nbd.CMD_FLAG_DF)
assert list(seen.values()) == [65536], seen
"#,
    );
}

#[test]
fn block_status_reports_the_newest_content() {
    let fixture = Fixture::with_volume(16 * MIB);
    let _daemon = fixture.start();
    nbdsh(
        &fixture,
        r#"
assert h.can_meta_context('base:allocation')
def status(count, offset, flags=0):
    runs = []
    def extent(context, at, entries, error):
        runs.extend(zip(entries[0::2], entries[1::2]))
    h.block_status(count, offset, extent, flags)
    return runs
h.pwrite(b'y' * 8192, 2 << 20)
runs = status(8192, 2 << 20)
assert runs[0][1] == 0 and runs[0][0] >= 8192, runs
h.flush()
assert status(8192, 2 << 20)[0][1] == 0
assert status(4096, 12 << 20)[0][1] & nbd.STATE_ZERO
h.zero(8192, 2 << 20)
assert h.pread(8192, 2 << 20) == bytes(8192)
h.pwrite(b'z' * 512, (2 << 20) + 512)
assert status(4096, 2 << 20)[0][1] & nbd.STATE_ZERO == 0
assert len(status(16 << 20, 0, nbd.CMD_FLAG_REQ_ONE)) == 1
"#,
    );
}

#[test]
fn trim_and_zero_read_as_zero_at_once_and_after_a_crash() {
    let mut fixture = Fixture::with_volume(16 * MIB);
    fixture.keep_in = "none".to_owned();
    let daemon = fixture.start();
    nbdsh(
        &fixture,
        r#"
h.pwrite(b'a' * (1 << 20), 0)
h.flush()
h.zero(4096, 0)
h.zero(1024, 8192 + 512, nbd.CMD_FLAG_NO_HOLE)
h.zero(4096, 16384, nbd.CMD_FLAG_FUA)
assert h.pread(4096, 0) == bytes(4096)
assert h.pread(512, 8192) == b'a' * 512
assert h.pread(1024, 8192 + 512) == bytes(1024)
h.trim(65536, 65536)
h.pread(65536, 65536)
h.flush()
"#,
    );
    daemon.kill();
    let _daemon = fixture.start();
    nbdsh(
        &fixture,
        r#"
assert h.pread(4096, 0) == bytes(4096)
assert h.pread(4096, 4096) == b'a' * 4096
assert h.pread(1024, 8192 + 512) == bytes(1024)
assert h.pread(4096, 16384) == bytes(4096)
assert h.pread(4096, 20480) == b'a' * 4096
"#,
    );
}

#[test]
fn fast_zero_succeeds_or_fails_at_once() {
    let fixture = Fixture::with_volume(16 * MIB);
    let _daemon = fixture.start();
    nbdsh(
        &fixture,
        r#"
if h.can_fast_zero():
    h.pwrite(b'q' * 65536, 0)
    try:
        h.zero(65536, 0, nbd.CMD_FLAG_FAST_ZERO)
        assert h.pread(65536, 0) == bytes(65536)
    except nbd.Error as ex:
        assert ex.errno in ('ENOTSUP', 'EOPNOTSUPP'), ex
        assert h.pread(65536, 0) == b'q' * 65536
"#,
    );
}

#[test]
fn flush_covers_acknowledged_writes_of_other_connections() {
    let fixture = Fixture::with_volume(16 * MIB);
    let daemon = fixture.start();
    nbdsh(
        &fixture,
        r#"
assert h.can_multi_conn()
other = nbd.NBD()
other.connect_uri(uri)
for i in range(64):
    (h if i % 2 else other).pwrite(bytes([i + 1]) * 4096, i * 65536)
other.flush()
for i in range(64):
    assert other.pread(4096, i * 65536) == bytes([i + 1]) * 4096
"#,
    );
    daemon.kill();
    let content = std::fs::read(fixture.backing("v")).expect("the backing exists");
    for i in 0..64usize {
        assert_eq!(content[i * 65536..][..4096], [i as u8 + 1; 4096], "write {i}");
    }
}

#[test]
fn fua_needs_no_flush() {
    let fixture = Fixture::with_volume(16 * MIB);
    let daemon = fixture.start();
    nbdsh(&fixture, "h.pwrite(b'f' * 5120, 512, nbd.CMD_FLAG_FUA)\n");
    daemon.kill();
    let content = std::fs::read(fixture.backing("v")).expect("the backing exists");
    assert_eq!(content[512..512 + 5120], [b'f'; 5120]);
}

#[test]
fn single_requests_of_32_mib_are_served_inside_less_memory() {
    let mut fixture = Fixture::with_volume(64 * MIB);
    fixture.memory = "20 MiB".to_owned();
    let _daemon = fixture.start();
    nbdsh(
        &fixture,
        r#"
import hashlib
data = bytes(range(256)) * (32 << 12)
h.pwrite(data, 4096)
assert hashlib.md5(h.pread(len(data), 4096)).digest() == hashlib.md5(data).digest()
"#,
    );
}

#[test]
fn invalid_requests_fail_and_the_connection_stays() {
    let mut fixture = Fixture::with_volume(16 * MIB);
    fixture.add_volume("fixed", MIB, "read_only = true");
    let _daemon = fixture.start();
    nbdsh(
        &fixture,
        r#"
def refused(call, *errnos):
    try:
        call()
    except nbd.Error as ex:
        assert ex.errno in errnos, (ex.errno, errnos)
    else:
        raise AssertionError('was not refused')
h.set_strict_mode(0)
size = h.get_size()
refused(lambda: h.pread(512, size), 'EINVAL')
refused(lambda: h.pread(4096, size - 512), 'EINVAL')
refused(lambda: h.pwrite(b'1' * 512, size), 'ENOSPC', 'EINVAL')
refused(lambda: h.zero(1 << 20, size - 512), 'ENOSPC', 'EINVAL')
refused(lambda: h.trim(1 << 20, size - 512), 'EINVAL', 'ENOSPC')
assert h.pread(512, size - 512) == bytes(512)
h.cache(65536, 0)
fixed = nbd.NBD()
fixed.set_strict_mode(0)
fixed.connect_uri(uri.replace('///v?', '///fixed?'))
assert fixed.is_read_only()
refused(lambda: fixed.pwrite(b'1' * 512, 0), 'EPERM', 'EROFS')
refused(lambda: fixed.zero(512, 0), 'EPERM', 'EROFS')
assert fixed.pread(512, 0) == bytes(512)
"#,
    );
}
