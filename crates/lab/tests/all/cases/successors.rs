//! Clients stay connected while the ownership of their volume moves: requests wait for the volume's successor, changes
//! on standby wait for the ownership, and a client whose volume has moved away changes nothing.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use engine::{AnyDisk, RequestError, Volume, VolumeSpec, WritePolicy};
use lab::fixture::{Fixture, durable_tags, out_of_order_disk, read, write};
use seam::sim::{CrashMode, Fault, Ops, Rule, SimDisk, SimSeam, When, WorldSpec};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;

/// Attaches the disk as a volume on standby: here its backing is the disk itself instead of the owner's host.
fn attach_standby(fixture: &Fixture, name: &str, disk: &SimDisk) -> Volume<SimSeam> {
    let standby = fixture.attach_disk(name, AnyDisk::Plain(disk.clone()), |spec| {
        (spec.is_standby, spec.policy) = (true, WritePolicy::None);
        spec.volume_id.0 += 1;
    });
    standby.expect("the name is free")
}

/// Attaches the disk as a volume of its owner.
fn attach_owner(fixture: &Fixture, name: &str, disk: &SimDisk, edit: impl FnOnce(&mut VolumeSpec)) -> Volume<SimSeam> {
    fixture.attach_disk(name, AnyDisk::Plain(disk.clone()), edit).expect("the name is free")
}

/// Starts a write; the cell gets its result.
fn start_write(fixture: &Fixture, volume: &Volume<SimSeam>, tag: u64) -> Rc<RefCell<Option<Result<(), RequestError>>>> {
    let (volume, result) = (volume.clone(), Rc::<RefCell<_>>::default());
    let ended = Rc::clone(&result);
    fixture.seam.spawn(async move {
        let written = write(&volume, 0, 8, tag).await;
        *ended.borrow_mut() = Some(written);
    });
    result
}

#[test]
fn requests_of_connected_clients_wait_for_the_successor() {
    let fixture = Fixture::with_memory(1, 16 * MIB);
    let control = fixture.add_disk("disk", out_of_order_disk(4 * MIB));
    let disk = fixture.open("disk");
    let volume = attach_owner(&fixture, "disk", &disk, |_| ());
    let (stop, written) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
    let (client, seam, stopped, count) = (volume.clone(), fixture.seam.clone(), Rc::clone(&stop), Rc::clone(&written));
    fixture.seam.spawn(async move {
        while !stopped.get() {
            let tag = count.get() + 1;
            write(&client, tag % 64 * 8, 8, tag).await.expect("a write");
            assert_eq!(read(&client, tag % 64 * 8, 8).await.expect("a read"), [tag; 8]);
            client.flush().await.expect("a flush");
            count.set(tag);
            seam.sleep(Nanos::from_micros(50)).await;
        }
    });
    for _ in 0..3 {
        fixture.world.run_for(Nanos::from_millis(20)).unwrap();
        let (predecessor, _) = fixture.world.block_on(fixture.core.detach_for_successor("disk")).unwrap();
        assert_eq!((predecessor.stats().dirty_bytes, volume.size_bytes()), (0, 4 * MIB));
        let before = written.get();
        fixture.world.run_for(Nanos::from_millis(20)).unwrap();
        assert!(written.get() <= before + 1, "no volume serves the client");
        let successor = attach_owner(&fixture, "disk", &disk, |_| ());
        predecessor.set_successor(successor);
        fixture.world.run_for(Nanos::from_millis(20)).unwrap();
        assert!(written.get() > before + 1, "the successor serves the client");
    }
    stop.set(true);
    fixture.world.run_for(Nanos::from_secs(1)).unwrap();
    fixture.world.block_on(fixture.core.detach("disk")).unwrap();
    let last = written.get();
    assert_eq!(durable_tags(&control, last % 64 * 8, 8), [last; 8]);
}

/// The next owner reads the disk alone: not even what no flush covers may be in the former owner's memory.
#[test]
fn acknowledged_writes_survive_a_crash_after_the_detach() {
    let fixture = Fixture::with_memory(1, 16 * MIB);
    fixture.add_disk("disk", out_of_order_disk(4 * MIB));
    let volume = fixture.attach("disk", |_| ()).unwrap();
    for block in 0..64 {
        fixture.world.block_on(write(&volume, block * 8, 8, 7)).unwrap();
    }
    fixture.world.block_on(fixture.core.detach_for_successor("disk")).unwrap();
    let fixture = fixture.crash(CrashMode::LoseAll, WorldSpec::new(2));
    let volume = fixture.attach("disk", |_| ()).unwrap();
    assert_eq!(fixture.world.block_on(read(&volume, 0, 512)).unwrap(), [7; 512]);
}

#[test]
fn change_on_standby_waits_for_the_ownership() {
    let fixture = Fixture::with_memory(1, 16 * MIB);
    let control = fixture.add_disk("disk", out_of_order_disk(4 * MIB));
    let disk = fixture.open("disk");
    let owner = attach_owner(&fixture, "disk", &disk, |spec| spec.policy = WritePolicy::WriteThrough);
    fixture.world.block_on(write(&owner, 0, 8, 7)).unwrap();
    let standby = attach_standby(&fixture, "standby", &disk);
    assert_eq!(fixture.world.block_on(read(&standby, 0, 8)).unwrap(), [7; 8]);
    let before = control.counts();
    fixture.world.block_on(standby.flush()).unwrap();
    assert_eq!(control.counts().flushes, before.flushes, "a flush has nothing to do");
    let wanted = Rc::new(Cell::new(false));
    let (watched, seen) = (standby.clone(), Rc::clone(&wanted));
    fixture.seam.spawn(async move {
        seen.set(watched.wait_until_change_wanted().await);
    });
    fixture.world.run_for(Nanos::from_millis(10)).unwrap();
    assert!(!wanted.get(), "neither a read nor a flush asks for the ownership");
    let result = start_write(&fixture, &standby, 8);
    fixture.world.run_for(Nanos::from_millis(10)).unwrap();
    assert!(wanted.get() && result.borrow().is_none());
    assert_eq!(control.counts().writes, before.writes, "nothing is written before the ownership");
    // The handover fails once: another standby takes the place, and the write still waits.
    let predecessor = fixture.world.block_on(fixture.core.end_standby("standby")).expect("it is on standby");
    let again = attach_standby(&fixture, "standby", &disk);
    predecessor.set_successor(again);
    fixture.world.run_for(Nanos::from_millis(10)).unwrap();
    assert!(result.borrow().is_none());
    fixture.world.block_on(fixture.core.detach("disk")).unwrap();
    let predecessor = fixture.world.block_on(fixture.core.end_standby("standby")).expect("it is on standby");
    predecessor.set_successor(attach_owner(&fixture, "standby", &disk, |_| ()));
    fixture.world.run_for(Nanos::from_millis(10)).unwrap();
    assert_eq!(*result.borrow(), Some(Ok(())));
    assert_eq!(fixture.world.block_on(read(&standby, 0, 8)).unwrap(), [8; 8]);
    fixture.world.block_on(standby.flush()).unwrap();
    assert_eq!(durable_tags(&control, 0, 8), [8; 8]);
}

#[test]
fn change_on_standby_fails_if_the_ownership_does_not_come() {
    let fixture = Fixture::with_memory(1, 16 * MIB);
    fixture.add_disk("disk", out_of_order_disk(4 * MIB));
    let disk = fixture.open("disk");
    let standby = attach_standby(&fixture, "standby", &disk);
    let result = start_write(&fixture, &standby, 8);
    fixture.world.run_for(Nanos::from_secs(19)).unwrap();
    assert!(result.borrow().is_none());
    fixture.world.run_for(Nanos::from_secs(2)).unwrap();
    assert_eq!(*result.borrow(), Some(Err(RequestError::NotOwner)));
    assert_eq!(fixture.world.block_on(read(&standby, 0, 8)).unwrap(), [0; 8], "reads go on");
    // A stop does not wait for it.
    let result = start_write(&fixture, &standby, 8);
    let ended = fixture.world.block_on(fixture.core.end_standby("standby")).expect("it is on standby");
    ended.cancel_succession();
    fixture.world.run_for(Nanos::from_millis(10)).unwrap();
    assert_eq!(*result.borrow(), Some(Err(RequestError::ShuttingDown)));
}

#[test]
fn client_whose_volume_moved_away_reads_and_changes_nothing() {
    let fixture = Fixture::with_memory(1, 16 * MIB);
    let control = fixture.add_disk("disk", out_of_order_disk(4 * MIB));
    let disk = fixture.open("disk");
    let client = attach_owner(&fixture, "disk", &disk, |_| ());
    let reader = client.for_client();
    fixture.world.block_on(write(&client, 0, 8, 7)).unwrap();
    let (predecessor, _) = fixture.world.block_on(fixture.core.detach_for_successor("disk")).unwrap();
    predecessor.set_successor(attach_standby(&fixture, "disk", &disk));
    assert_eq!(fixture.world.block_on(read(&client, 0, 8)).unwrap(), [7; 8]);
    fixture.world.block_on(client.flush()).unwrap();
    let writes = control.counts().writes;
    assert_eq!(fixture.world.block_on(write(&client, 0, 8, 9)), Err(RequestError::MovedAway));
    assert_eq!(control.counts().writes, writes);
    // A client that has only read asks for the ownership, as one that connects now.
    let later = fixture.core.find("disk").expect("it is on standby");
    let result = start_write(&fixture, &reader, 9);
    fixture.world.run_for(Nanos::from_millis(10)).unwrap();
    assert!(fixture.world.block_on(later.wait_until_change_wanted()));
    assert!(result.borrow().is_none());
    let predecessor = fixture.world.block_on(fixture.core.end_standby("disk")).expect("it is on standby");
    predecessor.set_successor(attach_owner(&fixture, "disk", &disk, |_| ()));
    fixture.world.run_for(Nanos::from_millis(10)).unwrap();
    assert_eq!(*result.borrow(), Some(Ok(())));
    assert_eq!(fixture.world.block_on(read(&client, 0, 8)).unwrap(), [9; 8], "both clients see one content");
}

#[test]
fn volume_that_cannot_be_detached_goes_on_for_its_clients() {
    let fixture = Fixture::with_memory(1, 16 * MIB);
    let control = fixture.add_disk("disk", out_of_order_disk(4 * MIB));
    let disk = fixture.open("disk");
    let volume = attach_owner(&fixture, "disk", &disk, |_| ());
    fixture.world.block_on(write(&volume, 0, 8, 7)).unwrap();
    control.add_fault(Rule::new(Fault::Error, Ops::FLUSH, When::Nth(0)));
    assert!(fixture.world.block_on(fixture.core.detach_for_successor("disk")).is_err());
    fixture.world.block_on(write(&volume, 0, 8, 8)).unwrap();
    fixture.world.block_on(fixture.core.detach_for_successor("disk")).unwrap();
    assert_eq!(durable_tags(&control, 0, 8), [8; 8]);
    let result = start_write(&fixture, &volume, 9);
    fixture.world.run_for(Nanos::from_millis(10)).unwrap();
    assert!(result.borrow().is_none());
    volume.cancel_succession();
    fixture.world.run_for(Nanos::from_millis(10)).unwrap();
    assert_eq!(*result.borrow(), Some(Err(RequestError::ShuttingDown)), "nothing takes its place");
}
