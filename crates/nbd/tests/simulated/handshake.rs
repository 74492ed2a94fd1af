//! The handshake: options and their replies.

use engine::VolumeId;
use nbd::{Options, Server};
use nbd_protocol::info::{Info, InfoRequest};
use nbd_protocol::meta::{MetaRequest, decode_context};
use nbd_protocol::{Command, OptionKind, OptionReplyKind, flags};
use seam::{Nanos, Seam};

use crate::fixture::{SIZE, connect, core, listen, plain, with_server, world};

fn info(name: &str) -> Vec<u8> {
    InfoRequest { name, wants_block_size: true, wants_name: true, wants_description: true }.encode()
}

#[test]
fn client_learns_exports_and_their_features() {
    with_server(1, Options::default(), async |seam, _| {
        let mut client = connect(&seam).await;
        let listed = client.option(OptionKind::List, b"").await;
        assert_eq!(listed[0], (OptionReplyKind::Server, b"\0\0\0\x03vm1none".to_vec()));
        assert_eq!(listed[1].0, OptionReplyKind::Ack);

        client.option(OptionKind::StructuredReply, b"").await;
        let replies = client.option(OptionKind::Info, &info("")).await;
        let infos: Vec<_> = replies.iter().filter(|(kind, _)| *kind == OptionReplyKind::Info).collect();
        let infos: Vec<Info<'_>> = infos.iter().map(|(_, payload)| Info::parse(payload).expect("valid info")).collect();
        assert!(infos.contains(&Info::Name("vm1")), "the default export reports its name");
        assert!(infos.contains(&Info::BlockSize { min: 512, preferred: 4096, max: 64 << 20 }));
        let Some(Info::Export { size_bytes: SIZE, flags: export_flags }) = infos.first() else { panic!("{infos:?}") };
        let expected_flags = flags::SEND_FLUSH | flags::SEND_FUA | flags::SEND_TRIM | flags::SEND_WRITE_ZEROES;
        let expected_flags =
            expected_flags | flags::SEND_DF | flags::CAN_MULTI_CONN | flags::SEND_CACHE | flags::SEND_FAST_ZERO;
        assert_eq!(*export_flags, expected_flags | flags::HAS_FLAGS);

        let go = client.option(OptionKind::Go, &info("vm1")).await;
        assert_eq!(go.last().expect("a reply").0, OptionReplyKind::Ack);
        assert!(client.read(0, 512).await.is_ok());
    });
}

#[test]
fn unknown_export_is_refused_and_another_may_be_selected() {
    with_server(2, Options::default(), async |seam, _| {
        let mut client = connect(&seam).await;
        let (kind, text) = &client.option(OptionKind::Go, &info("vm2")).await[0];
        assert_eq!((*kind, &text[..]), (OptionReplyKind::ErrUnknown, &b"no export is named \"vm2\""[..]));
        client.go("vm1").await;
    });
}

#[test]
fn export_name_option_works_with_and_without_zeroes() {
    with_server(3, Options::default(), async |seam, _| {
        for (client_flags, zeroes) in [(flags::FIXED_NEWSTYLE | flags::NO_ZEROES, 0), (flags::FIXED_NEWSTYLE, 124)] {
            let mut client = crate::client::Client::connect_without_flags(&seam, &crate::fixture::address()).await;
            client.receive(nbd_protocol::greeting::decode_greeting).await.expect("the greeting arrives");
            client.send(&u32::from(client_flags).to_be_bytes()).await;
            let mut bytes = Vec::new();
            nbd_protocol::option::push_option(&mut bytes, OptionKind::ExportName, b"vm1");
            client.send(&bytes).await;
            let len = 10 + zeroes;
            let reply = move |bytes: &[u8]| match bytes.get(..len) {
                None => Ok(nbd_protocol::Step::Incomplete(len)),
                Some(reply) => Ok(nbd_protocol::Step::Got(reply.to_vec(), len)),
            };
            let reply = client.receive(reply).await.expect("size and flags arrive");
            assert_eq!(reply[..8], SIZE.to_be_bytes());
            client.send_request(Command::Read, 0, 0, 512, b"").await;
            assert!(client.receive_part(512).await.is_some());
        }
    });
}

#[test]
fn unknown_and_malformed_options_are_refused_and_negotiation_continues() {
    with_server(4, Options::default(), async |seam, _| {
        let mut client = connect(&seam).await;
        let cases: [(OptionKind, &[u8], OptionReplyKind); 9] = [
            (OptionKind::Unknown(4711), b"", OptionReplyKind::ErrUnsupported),
            (OptionKind::ExtendedHeaders, b"", OptionReplyKind::ErrUnsupported),
            (OptionKind::StartTls, b"", OptionReplyKind::ErrPolicy),
            (OptionKind::List, b"x", OptionReplyKind::ErrInvalid),
            (OptionKind::Go, b"", OptionReplyKind::ErrInvalid),
            (OptionKind::Info, b"\xff\xff\xff\xff", OptionReplyKind::ErrInvalid),
            (OptionKind::SetMetaContext, b"", OptionReplyKind::ErrInvalid),
            (OptionKind::Go, &[0; 20_000], OptionReplyKind::ErrTooBig),
            (OptionKind::Unknown(77), &[7; 1 << 20], OptionReplyKind::ErrTooBig),
        ];
        for (kind, payload, expected) in cases {
            assert_eq!(client.option(kind, payload).await[0].0, expected, "{kind:?}");
        }
        client.go("vm1").await;
        assert!(client.read(0, 512).await.is_ok());
    });
}

#[test]
fn metadata_contexts_are_listed_selected_and_reset() {
    with_server(5, Options::default(), async |seam, _| {
        let mut client = connect(&seam).await;
        let query = MetaRequest::encode_base_allocation("vm1");
        assert_eq!(client.option(OptionKind::SetMetaContext, &query).await[0].0, OptionReplyKind::ErrInvalid);
        client.option(OptionKind::StructuredReply, b"").await;
        let no_queries = b"\0\0\0\x03vm1\0\0\0\0";
        let listed = client.option(OptionKind::ListMetaContext, no_queries).await;
        assert_eq!(decode_context(&listed[0].1), Ok((0, flags::BASE_ALLOCATION)));
        assert_eq!(client.option(OptionKind::SetMetaContext, &query).await[0].0, OptionReplyKind::MetaContext);
        assert_eq!(client.option(OptionKind::SetMetaContext, no_queries).await[0].0, OptionReplyKind::Ack);
        client.go_simple("vm1").await;
        let status = client.call(Command::BlockStatus, 0, 0, 4096, b"").await;
        assert_eq!(status, [crate::client::ReplyPart::Failed(nbd_protocol::Errno::Inval)]);
    });
}

#[test]
fn read_only_export_is_announced_and_refuses_writes() {
    let world = world(6);
    let seam = world.seam();
    world.block_on(async {
        let spec = engine::VolumeSpec { read_only: true, ..plain() };
        crate::fixture::serve(&seam, spec, Options::default()).await;
        let mut client = connect(&seam).await;
        let export_flags = client.go_simple("vm1").await;
        assert_eq!(export_flags & (flags::READ_ONLY | flags::SEND_TRIM), flags::READ_ONLY);
        assert_eq!(client.write(0, &[0; 512]).await, Err(nbd_protocol::Errno::Perm));
        client.send_request(Command::Read, 0, 0, 512, b"").await;
        assert!(client.receive_part(512).await.is_some(), "the data of the refused write are skipped");
    });
}

#[test]
fn stalled_handshake_ends_at_its_time_limit() {
    let options = Options { handshake_timeout: Nanos::from_secs(3), ..Options::default() };
    with_server(7, options, async |seam, server| {
        let mut client = connect(&seam).await;
        client.send(b"IHAVEOPT\0\0\0").await;
        let before = seam.now();
        assert!(client.is_closed().await);
        assert!(seam.now().since(before) <= Nanos::from_secs(3));
        assert_eq!((server.stats().failed_handshakes, server.stats().connections), (1, 0));
    });
}

#[test]
fn clients_beyond_the_limit_are_refused_until_one_leaves() {
    let options = Options { connections_max: 2, ..Options::default() };
    with_server(8, options, async |seam, server| {
        let (mut first, mut second) = (connect(&seam).await, connect(&seam).await);
        first.go("vm1").await;
        second.go("vm1").await;
        let mut third = crate::client::Client::connect_without_flags(&seam, &crate::fixture::address()).await;
        assert!(third.is_closed().await);
        assert_eq!(server.stats().refused, 1);
        drop(second);
        seam.sleep(Nanos::from_millis(10)).await;
        connect(&seam).await.go("vm1").await;
    });
}

#[test]
fn two_exports_have_no_default() {
    let world = world(9);
    let seam = world.seam();
    world.add_disk("/other", seam::sim::SimDiskSpec::new(1 << 20));
    world.block_on(async {
        let core = core(&seam, plain()).await;
        let open = seam::DiskOpen { path: "/other".into(), create_bytes: None, read_only: false, lock_wait_ms: 0 };
        let disk = seam.open_disk(&open).await.expect("the disk exists");
        core.attach(engine::VolumeSpec::new("vm2", VolumeId(2)), engine::Backing::plain(disk))
            .expect("the name is free");
        listen(&seam, &Server::new(seam.clone(), core, Options::default())).await;
        let mut client = connect(&seam).await;
        assert_eq!(client.option(OptionKind::List, b"").await.len(), 3);
        assert_eq!(client.option(OptionKind::Go, &info("")).await[0].0, OptionReplyKind::ErrUnknown);
        client.go("vm2").await;
    });
}
