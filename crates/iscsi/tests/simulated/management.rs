//! Task management: a command is answered or aborted, never both, and never has a late effect.

use iscsi::Options;
use iscsi_protocol::ResponseBody;
use iscsi_protocol::request::TaskFunction;
use iscsi_protocol::response::TaskResponse;
use seam::sim::{Fault, Ops, Rule, When};
use seam::{Nanos, Seam};

use crate::client::{CHECK_CONDITION, Client, LoginSpec, numbered_sectors, read_cdb, write_cdb};
use crate::fixture::{disk, with_server};

/// Sense key of a unit attention.
const UNIT_ATTENTION: u8 = 6;
const STALL: Nanos = Nanos::from_secs(60);

#[test]
fn pings_and_aborted_reads_are_answered_while_the_disk_hangs() {
    let options = Options { ping_after: STALL + STALL, ..Options::default() };
    with_server(50, options, async |seam, _, world| {
        let mut client = Client::ready(&seam, &LoginSpec::default()).await;
        disk(world).add_fault(Rule::new(Fault::Stall(STALL), Ops::ALL, When::Always));
        let read = client.begin(&read_cdb(0, 8), 4096, &[]).await;
        let write = client.begin(&write_cdb(64, 8), 0, &numbered_sectors(1, 8)).await;
        let began = seam.now();
        for _ in 0..50 {
            let tag = client.ping(b"are you there?").await;
            let (response, data) = client.receive().await.expect("the server responds");
            assert!(matches!(response.body, ResponseBody::NopIn { .. }) && response.task_tag == tag);
            assert_eq!(data, b"are you there?");
        }
        let abort = client.manage(TaskFunction::AbortTask, read).await;
        assert_eq!(client.task_management_response(abort).await, TaskResponse::Complete);
        assert!(seam.now().since(began) < Nanos::from_secs(1), "the abort of a read does not wait for the hung disk");

        let abort = client.manage(TaskFunction::AbortTask, write).await;
        assert_eq!(client.task_management_response(abort).await, TaskResponse::Complete);
        assert!(seam.now().since(began) >= STALL, "the write could have an effect until then");
        disk(world).clear_faults();
        client.write(64, &numbered_sectors(100, 8)).await;
        seam.sleep(STALL).await;
        assert_eq!((client.read(64, 8).await, disk(world).tag(64)), (numbered_sectors(100, 8), 100));
    });
}

#[test]
fn command_is_answered_or_aborted_never_both() {
    let (mut answered, mut aborted) = (0, 0);
    for seed in 0..60 {
        with_server(1000 + seed, Options::default(), async |seam, _, _| {
            let mut client = Client::ready(&seam, &LoginSpec::default()).await;
            let read = seed % 2 == 0;
            let tag = match read {
                true => client.begin(&read_cdb(0, 8), 4096, &[]).await,
                false => client.begin(&write_cdb(0, 8), 0, &numbered_sectors(1, 8)).await,
            };
            seam.sleep(Nanos::from_micros(seed * 13)).await;
            let abort = client.manage(TaskFunction::AbortTask, tag).await;
            let mut ended = false;
            loop {
                let (response, _) = client.receive().await.expect("the server responds");
                match response.body {
                    ResponseBody::TaskManagement(TaskResponse::Complete) => {
                        assert!(!ended, "the command was answered already");
                        aborted += 1;
                        break;
                    }
                    ResponseBody::TaskManagement(answer) => {
                        assert_eq!((response.task_tag, answer, ended), (abort, TaskResponse::NoSuchTask, true));
                        answered += 1;
                        break;
                    }
                    ResponseBody::DataIn(head) => ended |= head.status.is_some(),
                    ResponseBody::Command { .. } => ended = true,
                    other => panic!("{other:?}"),
                }
            }
            // The command sends nothing afterwards.
            let ping = client.ping(b"").await;
            assert_eq!(client.receive().await.expect("the server responds").0.task_tag, ping);
        });
    }
    assert!(answered > 5 && aborted > 5, "{answered} answered, {aborted} aborted");
}

#[test]
fn lun_reset_raises_a_unit_attention_for_all_initiators() {
    with_server(51, Options::default(), async |seam, _, world| {
        let mut first = Client::ready(&seam, &LoginSpec::default()).await;
        let mut second = Client::ready(&seam, &LoginSpec { isid: 2, ..LoginSpec::default() }).await;
        disk(world).add_fault(Rule::new(Fault::Stall(Nanos::from_secs(5)), Ops::ALL, When::Always));
        second.begin(&read_cdb(0, 8), 4096, &[]).await;
        first.begin(&write_cdb(0, 8), 0, &numbered_sectors(1, 8)).await;
        seam.sleep(Nanos::from_millis(10)).await;
        disk(world).clear_faults();
        let tag = first.manage(TaskFunction::LogicalUnitReset, 0).await;
        assert_eq!(first.task_management_response(tag).await, TaskResponse::Complete);
        for client in [&mut first, &mut second] {
            let result = client.call(&[0; 16], 0, &[]).await.expect("the server responds");
            assert_eq!(
                (result.status, result.sense[2], result.sense[12], result.sense[13]),
                // BUS DEVICE RESET FUNCTION OCCURRED
                (CHECK_CONDITION, UNIT_ATTENTION, 0x29, 3)
            );
            assert_eq!(client.read(8, 1).await.len(), 512);
        }
    });
}

#[test]
fn unsupported_functions_get_their_response_codes() {
    with_server(52, Options::default(), async |seam, _, _| {
        let mut client = Client::ready(&seam, &LoginSpec::default()).await;
        for (function, expected) in [
            (TaskFunction::AbortTask, TaskResponse::NoSuchTask),
            (TaskFunction::ClearAca, TaskResponse::NotSupported),
            (TaskFunction::TaskReassign, TaskResponse::NoReassignment),
            (TaskFunction::Unknown(77), TaskResponse::NotSupported),
            (TaskFunction::AbortTaskSet, TaskResponse::Complete),
            (TaskFunction::ClearTaskSet, TaskResponse::Complete),
            (TaskFunction::TargetWarmReset, TaskResponse::Complete),
            (TaskFunction::TargetColdReset, TaskResponse::Complete),
        ] {
            let tag = client.manage(function, 4711).await;
            assert_eq!(client.task_management_response(tag).await, expected, "{function:?}");
        }
        assert!(client.is_closed().await, "a cold reset ends the session");
    });
}

#[test]
fn repeated_abort_of_a_write_waits_like_the_first() {
    let options = Options { ping_after: STALL + STALL, ..Options::default() };
    with_server(60, options, async |seam, _, world| {
        let mut client = Client::ready(&seam, &LoginSpec::default()).await;
        disk(world).add_fault(Rule::new(Fault::Stall(STALL), Ops::WRITE, When::Nth(0)));
        let write = client.begin(&write_cdb(64, 8), 0, &numbered_sectors(1, 8)).await;
        seam.sleep(Nanos::from_secs(1)).await;
        let began = seam.now();
        let functions = [TaskFunction::AbortTask, TaskFunction::AbortTask, TaskFunction::AbortTaskSet];
        let mut waiting = Vec::new();
        for function in functions {
            waiting.push(client.manage(function, write).await);
        }
        for _ in functions {
            let (response, _) = client.receive().await.expect("the server responds");
            assert_eq!(response.body, ResponseBody::TaskManagement(TaskResponse::Complete));
            assert!(waiting.contains(&response.task_tag));
            assert!(
                seam.now().since(began) >= STALL - Nanos::from_secs(2),
                "the write could have an effect until then"
            );
        }
        let again = client.manage(TaskFunction::AbortTask, write).await;
        assert_eq!(client.task_management_response(again).await, TaskResponse::NoSuchTask);
    });
}
