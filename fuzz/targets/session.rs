//! A whole session with the server in a simulated world: raw bytes, or nearly valid requests. Checks: no panic, no
//! endless wait, and no remaining resources after the client has disconnected.

#![no_main]

use engine::{Backing, Core, CoreSpec, VolumeId, VolumeSpec, WritePolicy};
use libfuzzer_sys::fuzz_target;
use nbd::{Options, Server};
use nbd_protocol::info::InfoRequest;
use nbd_protocol::meta::MetaRequest;
use nbd_protocol::option::push_option;
use nbd_protocol::{Command, OptionKind, Request};
use seam::sim::{SimDiskSpec, SimSeam, StoredContent, World, WorldSpec};
use seam::{Address, ByteStream, DiskOpen, Gather, Nanos, Seam, StreamReader, StreamWriter};

const DISK_BYTES: u64 = 8 << 20;

/// A handshake that reaches transmission.
fn handshake(uses_structured_replies: bool) -> Vec<u8> {
    let mut out = vec![0, 0, 0, 3];
    if uses_structured_replies {
        push_option(&mut out, OptionKind::StructuredReply, b"");
        push_option(&mut out, OptionKind::SetMetaContext, &MetaRequest::encode_base_allocation("x"));
    }
    let request = InfoRequest { name: "x", wants_block_size: true, wants_name: true, wants_description: true };
    push_option(&mut out, OptionKind::Go, &request.encode());
    out
}

/// Nearly valid requests, eight bytes of input each.
fn requests(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let (chunks, rest) = bytes.as_chunks::<8>();
    for (cookie, [kind, flags, a, b, c, d, e, f]) in (0..).zip(chunks) {
        let command = Command::from_wire(u16::from(kind % 10));
        let unit = if kind & 0x10 == 0 { 512 } else { 1 };
        let offset = u64::from(u16::from_be_bytes([*a, *b])) * unit;
        let len = (u32::from(u16::from_be_bytes([*c, *d])) * unit as u32) << (e % 12);
        out.extend(Request { flags: u16::from(flags & 0x1f), command, cookie, offset, len }.encode());
        if command.has_payload() {
            // Some payloads are shorter or longer than stated.
            let payload = (len as usize).min(300 << 10);
            out.resize(out.len() + if *f == 7 { payload / 2 } else { payload }, *f);
        }
    }
    out.extend(rest);
    out
}

async fn session(seam: &SimSeam, bytes: Vec<u8>) {
    let open = DiskOpen { path: "/disk".into(), create_bytes: None, read_only: false, lock_wait_ms: 0 };
    let core = Core::new(seam.clone(), CoreSpec::default());
    let spec = VolumeSpec { policy: WritePolicy::None, ..VolumeSpec::new("x", VolumeId(1)) };
    core.attach(spec, Backing::plain(seam.open_disk(&open).await.expect("the disk exists")))
        .expect("the volume name is free");
    let server = Server::new(seam.clone(), core.clone(), Options::default());
    let address = Address::Unix("/s".into());
    let (listener, accepting) = (seam.listen(&address).await.expect("the address is free"), server.clone());
    seam.spawn(async move { accepting.accept(listener).await });

    let (mut reader, mut writer) = seam.connect(&address).await.expect("the server listens").split();
    seam.spawn(async move {
        let mut gather = Gather::default();
        gather.push_bytes(&bytes);
        let (Ok(()) | Err(_), _) = writer.send(gather).await;
    });
    let mut buffer = Vec::with_capacity(64 << 10);
    loop {
        let (result, back) = reader.read(buffer).await;
        buffer = back;
        buffer.clear();
        if !matches!(result, Ok(1..)) {
            break;
        }
    }
    seam.sleep(Nanos::from_secs(60)).await;
    assert_eq!(server.stats().connections, 0, "the connection was removed");
    core.detach("x").await.expect("the volume is unused");
}

fuzz_target!(|data: &[u8]| {
    let Some((mode, rest)) = data.split_first() else { return };
    let bytes = match mode % 4 {
        0 => rest.to_vec(),
        1 => [handshake(mode & 4 == 0), rest.to_vec()].concat(),
        _ => [handshake(mode & 4 == 0), requests(rest)].concat(),
    };
    let world = World::new(WorldSpec {
        blocks: 4096,
        content: StoredContent::MetadataOnly,
        time_max: Nanos::from_secs(86_400),
        ..WorldSpec::new(u64::from(*mode))
    });
    world.add_disk("/disk", SimDiskSpec::new(DISK_BYTES));
    let seam = world.seam();
    world.block_on(session(&seam, bytes));
});
