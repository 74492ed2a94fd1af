//! Tests of the state directory.

use std::collections::BTreeSet;
use std::io;

use engine::{CacheMode, VolumeId, WritePolicy};
use flash::MembershipGeneration;

use super::*;

fn identified(state: &mut State, name: &str, backing: &str, drawn: u64) -> Result<VolumeId, Refusal> {
    state.identify(&Claim::plain(name, backing), || VolumeId(drawn)).map(|admission| admission.volume_id)
}

/// Like [`identified`], for an administrator who adopts the backing and gives up the named data.
fn adopted(
    state: &mut State,
    name: &str,
    backing: &str,
    drawn: u64,
    give_up: Option<&str>,
) -> Result<VolumeId, Refusal> {
    let accept = Acceptance { adopt: true, give_up: give_up.map(str::to_owned), ..Acceptance::default() };
    let claim = Claim { accept: &accept, ..Claim::plain(name, backing) };
    state.identify(&claim, || VolumeId(drawn)).map(|admission| admission.volume_id)
}

#[test]
fn volume_id_stays_with_its_backing_over_restarts_and_renames() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let mut dir = StateDir::open(folder.path()).expect("a new directory");
    let first = dir.change(|state| identified(state, "web", "disk-1", 7)).expect("written").expect("new");
    drop(dir);
    let mut dir = StateDir::open(folder.path()).expect("the same directory");
    assert_eq!(dir.change(|state| identified(state, "web", "disk-1", 8)).expect("written"), Ok(first));
    assert_eq!(dir.change(|state| identified(state, "www", "disk-1", 9)).expect("written"), Ok(first));
    assert_eq!(dir.state().volumes.len(), 1);
}

#[test]
fn case_16_same_name_on_another_backing_is_refused_until_adopted() {
    let mut state = State::default();
    let first = identified(&mut state, "web", "disk-1", 7).expect("new");
    let refused = identified(&mut state, "web", "disk-2", 8).expect_err("another backing");
    assert_eq!(
        refused.to_string(),
        "its backing is not the one that it had at the last start: it was /dev/disk (disk-1) and is /dev/disk (disk-2), \
         and the previous one was not cleanly stopped. Attach the previous backing; or give the new backing another \
         volume name; or, if the new backing holds the volume's data: hotset volume adopt web"
    );
    assert_eq!(state.volumes[0].volume_id, first, "a refusal changes nothing");
    let adopted = adopted(&mut state, "web", "disk-2", 8, None).expect("the loss is named");
    assert_ne!(adopted, first);
    assert_eq!(state.volumes.len(), 1, "the old identity is forgotten");
    assert!(identified(&mut state, "web", "disk-1", 9).is_err(), "the old disk is unknown now");
}

#[test]
fn changed_backing_is_named_by_its_paths_as_far_as_they_are_known() {
    let mut state = State { generation: 4, ..State::default() };
    let on = |path, identity| Claim { path, ..Claim::plain("web", identity) };
    let refusal = |state: &mut State| {
        let refused = state.identify(&on("/srv/new.img", "disk-2"), || VolumeId(8)).expect_err("another backing");
        refused.to_string().split_once(',').expect("the text has several parts").0.to_owned()
    };
    state.identify(&on("/srv/old.img", "disk-1"), || VolumeId(7)).expect("new");
    assert!(refusal(&mut state).ends_with("it was /srv/old.img (disk-1) and is /srv/new.img (disk-2)"));
    // An earlier version serves the volume, and keeps the path unchanged.
    state.volumes[0].generation = 5;
    assert!(refusal(&mut state).ends_with("it was disk-1 and is /srv/new.img (disk-2)"));
    let record = serde_json::to_string(&state.volumes[0]).expect("text keys");
    assert!(record.contains(r#""configured":{"path":"/srv/old.img","generation":4}"#), "{record}");
}

#[test]
fn name_whose_record_another_volume_adopted_is_refused_until_adopted() {
    let mut state = State { generation: 4, ..State::default() };
    identified(&mut state, "a", "disk-1", 1).expect("new");
    let other = identified(&mut state, "b", "disk-2", 2).expect("new");
    // The disks are replaced, and an administrator confirms that for the first volume.
    state.generation = 5;
    identified(&mut state, "a", "disk-2", 3).expect_err("another backing");
    assert_eq!(adopted(&mut state, "a", "disk-2", 3, None), Ok(other));
    let refused = identified(&mut state, "b", "disk-1", 4).expect_err("its backing is volume a's now");
    assert_eq!(refused.code(), "backing-changed");
    let loss = state.records_of("b", "disk-1").find_map(|record| loss_to_report(&state, record, !record.clean));
    assert_eq!(loss.map(|loss| loss.generation), Some(5), "the clients of the second volume are notified");
    // Without the adoption, the name gets its own disk back.
    assert_eq!(identified(&mut state.clone(), "b", "disk-2", 4), Ok(other));
    adopted(&mut state, "b", "disk-1", 4, None).expect("an administrator has confirmed the replacement");
    assert!(state.displaced.is_empty());
}

#[test]
fn records_that_may_be_an_older_copy_erase_no_persisted_memory() {
    let (recorded, unknown, given_up) = (VolumeId(7), VolumeId(8), VolumeId(9));
    let mut state = State::default();
    state.begin_life(5, 50);
    identified(&mut state, "web", "disk-1", recorded.0).expect("new");
    state.store_mut("ab").given_up.insert(show_volume_id(given_up));
    let needed = |state: &State, is_store_checked| {
        [recorded, unknown, given_up].map(|volume_id| state.may_need_memory(volume_id, is_store_checked))
    };
    assert_eq!(needed(&state, true), [true, false, false], "a removed volume");
    assert_eq!(needed(&state, false), [true, true, false], "the store may prove that the records are older");
    let unclaimed = State { unclaimed: ["cd".to_owned()].into(), ..state.clone() };
    assert_eq!(needed(&unclaimed, true), [true, true, false], "a record may have been lost");
    state.record_store_refusal(&Refusal::StateOlder { store: "ab".into(), epoch: 3, known: 2 });
    for is_store_checked in [true, false] {
        assert_eq!(needed(&state, is_store_checked), [true; 3], "an older copy changes no image");
    }
}

#[test]
fn backing_recorded_under_a_former_identity_is_recognised() {
    let mut state = State::default();
    let first = identified(&mut state, "web", "old-1", 7).expect("new");
    identified(&mut state, "other", "old-2", 8).expect("new");
    state.rename_backing(&["older-1".to_owned(), "old-1".to_owned()], "new-1");
    assert_eq!(identified(&mut state, "web", "new-1", 9), Ok(first));
    state.rename_backing(&["old-2".to_owned()], "new-1");
    let known: Vec<_> = state.volumes.iter().map(|record| record.backing_identity.as_str()).collect();
    assert_eq!(known, ["new-1", "old-2"], "an identity that is taken is not assigned twice");
}

#[test]
fn swapped_names_are_recognised_by_their_backings() {
    let mut state = State::default();
    let a = identified(&mut state, "a", "disk-1", 1).expect("new");
    identified(&mut state, "b", "disk-2", 2).expect("new");
    assert!(identified(&mut state, "a", "disk-2", 3).is_err());
    let served = ["a".to_owned()];
    let taken = state.identify(&Claim { served: &served, ..Claim::plain("c", "disk-1") }, || VolumeId(4));
    assert!(matches!(taken, Err(Refusal::BackingTaken { .. })), "{taken:?}");
    assert_eq!(adopted(&mut state, "b", "disk-1", 5, None), Ok(a), "adoption keeps the backing's own volume ID");
    assert_eq!(state.volumes.len(), 1);
}

#[test]
fn two_daemons_never_share_a_directory() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let held = StateDir::open(folder.path()).expect("free");
    let refused = StateDir::open(folder.path()).err().expect("held").to_string();
    assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
    drop(held);
    assert!(StateDir::open(folder.path()).is_ok());
}

#[test]
fn case_1_a_failed_step_leaves_the_old_state_or_the_new_one() {
    for failing in Step::ALL {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let mut dir = StateDir::open(folder.path()).expect("free");
        dir.change(|state| state.generation = 1).expect("written");
        let old = dir.state().clone();
        let before: Hook =
            Box::new(move |step| if step == failing { Err(io::Error::other("injected")) } else { Ok(()) });
        dir.change_with(before, |state| state.generation = 2).expect_err("the step fails");
        assert_eq!(dir.state(), &old, "in memory nothing changed at {failing:?}");
        drop(dir);
        let mut dir = StateDir::open(folder.path()).expect("readable after any failure");
        let generation = dir.state().generation;
        let renamed = failing == Step::SyncDirectory;
        assert_eq!(generation, if renamed { 2 } else { 1 }, "{failing:?}");
        dir.change(|state| state.generation = 3).expect("the next change goes through");
    }
}

#[test]
fn damaged_state_file_is_refused() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let file = folder.path().join("state.json");
    for damage in ["", "{", "[]", r#"{"version": 0}"#, r#"{"version": 1}"#, r#"{"version": 1, "generation": -1}"#] {
        std::fs::write(&file, damage).expect("written");
        let refused = StateDir::open(folder.path()).err().expect("damaged").to_string();
        assert!(refused.contains("damaged"), "{refused}");
    }
}

#[test]
fn change_by_command_holds_until_its_key_changes_in_the_file() {
    let mut state = State::default();
    let id = identified(&mut state, "web", "disk-1", 7).expect("new");
    let (back, through, none) = (WritePolicy::WriteBack, WritePolicy::WriteThrough, WritePolicy::None);
    state.set_override(id, POLICY, &none.to_string(), &back.to_string());
    assert_eq!(effective_policy(state.by_name("web"), back), none);
    assert_eq!(effective_policy(state.by_name("web"), through), through, "the file changed");
    state.expire_override(id, POLICY, &through.to_string());
    assert_eq!(effective_policy(state.by_name("web"), back), back, "the expired change stays removed");
    state.set_override(id, MODE, &CacheMode::Frozen.to_string(), &CacheMode::Active.to_string());
    assert_eq!(effective_mode(state.by_name("web")), CacheMode::Frozen);
    state.set_override(id, MODE, &CacheMode::Active.to_string(), &CacheMode::Active.to_string());
    assert!(state.volumes[0].overrides.is_empty());
}

#[test]
fn state_file_is_read_back_unchanged() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let mut dir = StateDir::open(folder.path()).expect("free");
    dir.change(|state| {
        let id = identified(state, "web", "disk-1", u64::MAX).expect("new");
        state.set_override(id, POLICY, "none", "write-back");
        state.removed.insert("old".to_owned(), "entry".to_owned());
    })
    .expect("written");
    assert_eq!(StateDir::peek(folder.path()).expect("readable").as_ref(), Some(dir.state()));
}

#[test]
fn volume_ids_are_drawn_from_the_operating_system() {
    let drawn: Vec<u64> = (0..8).map(|_| random_number().expect("randomness")).collect();
    let mut unique = drawn.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), drawn.len());
}

#[test]
fn possible_data_on_flash_is_recorded_until_the_volume_is_clean() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let mut dir = StateDir::open(folder.path()).expect("a new directory");
    let id = dir.change(|state| identified(state, "web", "disk-1", 7)).expect("written").expect("new");
    let without = std::fs::read_to_string(folder.path().join("state.json")).expect("the file was written");
    assert!(!without.contains("dirty_on_flash"), "a version without flash reads it, too: {without}");
    dir.change(|state| state.mark_on_flash(id, Some("ab"))).expect("written");
    dir.change(|state| state.mark_left_on_flash(id, 0)).expect("written");
    drop(dir);
    let mut dir = StateDir::open(folder.path()).expect("the same directory");
    assert_eq!(dir.state().volumes[0].dirty_on_flash.as_deref(), Some("ab"));
    assert!(dir.state().volumes[0].clean);
    dir.change(|state| state.mark_clean(id)).expect("written");
    assert_eq!(dir.state().volumes[0].dirty_on_flash, None);
}

#[test]
fn volume_gets_a_new_id_when_its_flash_data_is_given_up() {
    let mut state = State::default();
    let id = identified(&mut state, "web", "disk-1", 7).expect("new");
    state.set_override(id, POLICY, "none", "write-back");
    state.mark_on_flash(id, Some("ab"));
    state.discard_flash_data(id, VolumeId(8));
    assert_eq!(identified(&mut state, "web", "disk-1", 9), Ok(VolumeId(8)));
    assert_eq!(state.volumes[0].dirty_on_flash, None);
    assert!(state.volumes[0].overrides.contains_key(POLICY), "everything else stays");
}

#[test]
fn fields_of_a_later_version_are_kept_over_a_change() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let file = folder.path().join("state.json");
    let text = r#"{"version": 1, "generation": 3, "removed": {}, "colour": "blue", "volumes": [{"incarnation": "07",
        "name": "web", "backing_identity": "disk-1", "clean": true, "generation": 3, "weight": 4}],
        "stores": [{"store": "ab", "generation": 1, "heat": 5}]}"#;
    std::fs::write(&file, text).expect("written");
    let mut dir = StateDir::open(folder.path()).expect("readable");
    dir.change(|state| state.begin_life(1, 2)).expect("written");
    let written: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).expect("there")).expect("JSON");
    assert_eq!((&written["colour"], &written["volumes"][0]["weight"]), (&"blue".into(), &4.into()));
    assert_eq!(written["stores"][0]["heat"], 5);
}

#[test]
fn single_store_of_an_earlier_version_becomes_the_first_record() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let text = r#"{"version": 1, "generation": 3, "removed": {}, "flash": {"store": "ab", "generation": 4,
        "map_void": true, "written": {"f0": {"since": 1, "promotion_bytes": 2, "dirty_bytes": 3, "journal_bytes": 4}}},
        "volumes": [{"incarnation": "07", "name": "web", "backing_identity": "disk-1", "clean": true,
        "dirty_on_flash": "ab", "generation": 3}]}"#;
    std::fs::write(folder.path().join("state.json"), text).expect("written");
    let mut dir = StateDir::open(folder.path()).expect("readable");
    dir.change(|state| state.begin_life(1, 2)).expect("written");
    let state = dir.state();
    assert_eq!(
        state.store("ab").map(|store| (store.generation, store.map_unusable, store.life)),
        Some((MembershipGeneration(4), true, 0))
    );
    assert_eq!(state.wear["f0"].dirty_bytes, 3);
    let store_of = |life| FoundStore {
        store: "ab".to_owned(),
        ownership: flash::Ownership { life, ..Default::default() },
        devices: Vec::new(),
        holds_data: true,
    };
    assert_eq!(state.check_store(&store_of(0)), Ok(StoreUse::Known), "no version before has named itself in a store");
    assert!(state.check_store(&store_of(9)).is_err());
}

fn undestaged(volume_id: VolumeId, in_log: u64) -> std::collections::BTreeMap<VolumeId, UndestagedBlocks> {
    [(volume_id, UndestagedBlocks { in_log, in_memory: 0 })].into()
}

#[test]
fn data_on_a_present_device_is_not_offered_to_be_given_up() {
    let mut state = State::default();
    state.begin_life(1, 2);
    let id = identified(&mut state, "web", "disk-1", 7).expect("new");
    state.mark_on_flash(id, Some("ab"));
    for has_whole_log in [false, true] {
        let why_unused = |_: &str| UnusedStore { reason: "a device is missing".to_owned(), has_whole_log };
        let claim = Claim { why_unused: &why_unused, ..Claim::plain("web", "disk-1") };
        let refused = state.identify(&claim, || VolumeId(8)).expect_err("the log is not in use");
        assert_eq!(refused.code(), "dirty-elsewhere");
        assert_eq!(refused.to_string().contains("--give-up"), !has_whole_log, "{refused}");
        assert!(refused.to_string().contains("a device is missing"), "{refused}");
    }
}

#[test]
fn log_records_of_a_volume_clean_by_the_state_are_refused() {
    let mut state = State::default();
    state.begin_life(1, 2);
    let id = identified(&mut state, "web", "disk-1", 7).expect("new");
    let undestaged = undestaged(id, 5);
    let claim = Claim { store: Some("ab"), undestaged: &undestaged, ..Claim::plain("web", "disk-1") };
    let refused = state.identify(&claim, || VolumeId(8)).expect_err("the log is old");
    assert_eq!(refused.code(), "log-unexpected");
    assert!(refused.to_string().contains("adopt web --give-up 0000000000000007"), "{refused}");
    state.mark_on_flash(id, Some("ab"));
    assert_eq!(
        state.identify(&claim, || VolumeId(8)).map(|admission| admission.volume_id),
        Ok(id),
        "the mark expects data there"
    );
    state.mark_clean(id);
    let accept = Acceptance { adopt: true, give_up: Some(show_volume_id(id)), ..Acceptance::default() };
    let given_up = state.identify(&Claim { accept: &accept, ..claim }, || VolumeId(8)).expect("the loss is named");
    assert_eq!(given_up.volume_id, VolumeId(8));
}

#[test]
fn dirty_data_is_given_up_only_by_name() {
    let mut state = State::default();
    state.begin_life(1, 2);
    let id = identified(&mut state, "web", "disk-1", 7).expect("new");
    state.mark_on_flash(id, Some("ab"));
    state.store_mut("ab");
    for give_up in [None, Some("0000000000000008"), Some("web")] {
        let elsewhere = adopted(&mut state, "web", "disk-1", 8, give_up).expect_err("the lost data is not named");
        assert_eq!(elsewhere.code(), "dirty-elsewhere");
        let changed = adopted(&mut state, "web", "disk-2", 8, give_up).expect_err("the lost data is not named");
        assert_eq!(changed.code(), "backing-changed");
        assert!(changed.to_string().contains("discards an unknown amount of dirty data of volume web"), "{changed}");
    }
    assert_eq!(adopted(&mut state, "web", "disk-2", 9, Some("0000000000000007")), Ok(VolumeId(9)));
    state.record_unclaimed("ab", [VolumeId(7)]);
    assert!(state.unclaimed.is_empty(), "the data is known to be given up");
    state.record_unclaimed("ab", [VolumeId(6)]);
    assert!(!state.unclaimed.is_empty());
}

#[test]
fn current_copy_of_a_backing_is_adopted_with_the_dirty_data() {
    let mut state = State::default();
    state.begin_life(1, 2);
    let evidence = |destaged_unchanged, destaged_changed| Evidence {
        blocks_in_log: 5,
        destaged_unchanged,
        destaged_changed,
        content: ContentRecord { size_bytes: 100 * 4096, ..ContentRecord::default() },
        ..Evidence::default()
    };
    let (current, older, unproven) = (evidence(3, 0), evidence(3, 1), evidence(0, 0));
    let too_small = Evidence { blocks_past_end: 1, ..current.clone() };
    let partly_compared = Evidence { destaged_past_end: 1, ..current.clone() };
    let smaller =
        Evidence { content: ContentRecord { size_bytes: 99 * 4096, ..ContentRecord::default() }, ..current.clone() };
    let whole = Evidence { content: current.content.clone(), ..Evidence::default() };
    let first = Claim { store: Some("ab"), evidence: Some(&whole), ..Claim::plain("web", "disk-1") };
    let id = state.identify(&first, || VolumeId(7)).expect("new").volume_id;
    state.mark_on_flash(id, Some("ab"));
    let undestaged = undestaged(id, 5);
    let adopt = Acceptance { adopt: true, ..Acceptance::default() };
    let claim = |evidence, accept| Claim {
        store: Some("ab"),
        undestaged: &undestaged,
        evidence: Some(evidence),
        accept,
        ..Claim::plain("web", "disk-2")
    };
    let refusal = |state: &mut State, claim: Claim<'_>| {
        let refused = state.identify(&claim, || VolumeId(8)).expect_err("the data must not go to this disk");
        assert_eq!(refused.code(), "backing-changed");
        refused.to_string()
    };
    let plain = Acceptance::default();
    let text = refusal(&mut state, claim(&current, &plain));
    assert!(text.contains("hotset volume adopt web, which keeps the dirty data"), "{text}");
    for (evidence, reason) in [
        (&older, "1 of the blocks destaged last have other content"),
        (&unproven, "Nothing proves"),
        (&too_small, "Nothing proves"),
        (&partly_compared, "Nothing proves"),
        (&smaller, "Nothing proves"),
    ] {
        let text = refusal(&mut state, claim(evidence, &adopt));
        assert!(text.contains(reason) && !text.contains("keeps the dirty data for it"), "{text}");
    }
    let of_another = {
        let mut state = state.clone();
        state.identify(&Claim::plain("db", "disk-2"), || VolumeId(9)).expect("new");
        let text = refusal(&mut state, claim(&current, &adopt));
        assert!(text.contains("Nothing proves"), "the evidence of a known backing is about its own volume: {text}");
        state.identify(&Claim::plain("db", "disk-2"), || VolumeId(9)).expect("it stays").volume_id
    };
    assert_eq!(of_another, VolumeId(9));
    let elsewhere = Claim { store: Some("cd"), ..claim(&current, &adopt) };
    assert!(refusal(&mut state, elsewhere).contains("Nothing proves"), "the evidence is of another store");
    let admission = state.identify(&claim(&current, &adopt), || VolumeId(8)).expect("a current copy");
    assert_eq!(admission, Admission { volume_id: id, drops_pages: true });
    assert_eq!(state.volumes.len(), 1);
    assert_eq!(state.by_id(id).map(|record| record.backing_identity.as_str()), Some("disk-2"));
}

#[test]
fn name_whose_dirty_backing_another_configured_name_takes_stays_refused() {
    let mut state = State::default();
    state.begin_life(1, 2);
    let id = identified(&mut state, "web", "disk-1", 7).expect("new");
    state.mark_on_flash(id, Some("ab"));
    let undestaged = undestaged(id, 5);
    let configured = ["web".to_owned(), "web-old".to_owned()];
    let claim = |name, identity| Claim {
        store: Some("ab"),
        undestaged: &undestaged,
        configured: &configured,
        ..Claim::plain(name, identity)
    };
    let taken = state.identify(&claim("web-old", "disk-1"), || VolumeId(8)).expect("the backing is known");
    assert_eq!(taken.volume_id, id, "the dirty data goes to the disk that it belongs to");
    let refused = state.identify(&claim("web", "disk-2"), || VolumeId(9)).expect_err("the copy lacks that data");
    let text = refused.to_string();
    assert!(text.contains("belongs to volume web-old now") && !text.contains("keeps the dirty data"), "{text}");
}

#[test]
fn volume_written_without_its_store_drops_the_pages_there() {
    let mut state = State::default();
    state.begin_life(1, 2);
    let with = |store| Claim { store, ..Claim::plain("web", "disk-1") };
    assert!(!state.identify(&with(Some("ab")), || VolumeId(7)).expect("new").drops_pages, "a new volume has no pages");
    assert!(!state.identify(&with(Some("ab")), || VolumeId(8)).expect("known").drops_pages);
    let reading = Claim { writes: false, ..with(None) };
    state.identify(&reading, || VolumeId(8)).expect("known");
    assert!(
        !state.identify(&with(Some("ab")), || VolumeId(8)).expect("known").drops_pages,
        "nothing was written meanwhile"
    );
    state.identify(&with(None), || VolumeId(8)).expect("known");
    assert!(state.identify(&with(Some("ab")), || VolumeId(8)).expect("known").drops_pages);
    assert!(
        state.identify(&with(Some("ab")), || VolumeId(8)).expect("known").drops_pages,
        "until their removal is durable"
    );
    state.record_pages_dropped(VolumeId(7), "ab");
    assert!(!state.identify(&with(Some("ab")), || VolumeId(8)).expect("known").drops_pages);
    assert!(state.identify(&with(Some("cd")), || VolumeId(8)).expect("known").drops_pages, "another store");
    state.record_pages_dropped(VolumeId(7), "cd");
    assert!(
        state.identify(&with(Some("ab")), || VolumeId(8)).expect("known").drops_pages,
        "only one store can hold valid pages"
    );
}

#[test]
fn volume_new_to_the_state_is_refused_beside_unclaimed_data() {
    let mut state = State::default();
    state.begin_life(1, 2);
    identified(&mut state, "old", "disk-0", 6).expect("new");
    state.record_unclaimed("ab", [VolumeId(99)]);
    let claim = |name, identity| Claim::plain(name, identity);
    assert_eq!(
        state.identify(&claim("web", "disk-1"), || VolumeId(7)).expect_err("unclaimed data").code(),
        "data-unclaimed"
    );
    assert_eq!(
        state.identify(&claim("old", "disk-0"), || VolumeId(7)).expect("the volume is known").volume_id,
        VolumeId(6)
    );
    let accept = Acceptance { adopt: true, give_up: Some("ab".into()), ..Acceptance::default() };
    assert!(state.identify(&Claim { accept: &accept, ..claim("web", "disk-1") }, || VolumeId(7)).is_ok());
    assert!(
        state.identify(&claim("third", "disk-3"), || VolumeId(8)).is_err(),
        "given up for that volume, and for no other"
    );
    state.record_unclaimed("ab", [VolumeId(6), VolumeId(7)]);
    let third = state.identify(&claim("third", "disk-3"), || VolumeId(8));
    assert_eq!(third.expect_err("the devices may be an older copy").code(), "data-unclaimed");
}

#[test]
fn volume_new_to_a_state_without_stores_is_refused_beside_unread_flash() {
    let mut state = State::default();
    state.begin_life(1, 2);
    identified(&mut state, "old", "disk-0", 6).expect("new");
    let unread = ["/dev/f0 does not exist".to_owned()];
    let beside = |name, identity| Claim { unread_flash: &unread, ..Claim::plain(name, identity) };
    let refusal = state.identify(&beside("web", "disk-1"), || VolumeId(7)).expect_err("the device may have data");
    assert_eq!(refusal.code(), "flash-absent");
    assert!(state.identify(&beside("old", "disk-0"), || VolumeId(7)).is_ok(), "the volume is known");
    let accept = Acceptance { adopt: true, ..Acceptance::default() };
    assert!(state.identify(&Claim { accept: &accept, ..beside("web", "disk-1") }, || VolumeId(7)).is_ok());
    state.store_mut("ab");
    assert!(state.identify(&beside("third", "disk-3"), || VolumeId(8)).is_ok(), "the directory was not lost");
}

#[test]
fn shrunk_backing_is_refused_until_dirty_data_is_given_up() {
    let mut state = State::default();
    state.begin_life(1, 2);
    let evidence = |past, blocks: u64| Evidence {
        has_stored_identity: true,
        blocks_in_log: 5,
        blocks_past_end: past,
        content: ContentRecord { size_bytes: blocks * 4096, ..ContentRecord::default() },
        ..Evidence::default()
    };
    let (whole, cut) = (evidence(0, 100), evidence(3, 50));
    let claim = |evidence| Claim { store: Some("ab"), evidence: Some(evidence), ..Claim::plain("web", "disk-1") };
    let id = state.identify(&claim(&whole), || VolumeId(7)).expect("new").volume_id;
    state.mark_on_flash(id, Some("ab"));
    let undestaged = undestaged(id, 5);
    let claim = |evidence| Claim { undestaged: &undestaged, ..claim(evidence) };
    let refused = state.identify(&claim(&cut), || VolumeId(8)).expect_err("the backing shrank");
    assert!(refused.to_string().contains("has 204800 bytes and had 409600: 12288 bytes"), "{refused}");
    let accept = Acceptance { discard_past_end: true, ..Acceptance::default() };
    let accepted = Claim { accept: &accept, ..claim(&cut) };
    assert!(state.check(&accepted).is_ok());
    assert!(state.identify(&claim(&cut), || VolumeId(8)).is_err(), "a check changes nothing");
    assert!(state.identify(&accepted, || VolumeId(8)).is_ok());
}

#[test]
fn unproven_shrunk_backing_is_adopted_without_the_data_past_its_end() {
    let mut state = State::default();
    state.begin_life(1, 2);
    let evidence = |past, blocks: u64| Evidence {
        blocks_in_log: 5,
        blocks_past_end: past,
        content: ContentRecord { size_bytes: blocks * 4096, ..ContentRecord::default() },
        ..Evidence::default()
    };
    let (whole, cut, cut_inside) = (evidence(0, 100), evidence(3, 50), evidence(0, 50));
    let claim = |evidence| Claim { store: Some("ab"), evidence: Some(evidence), ..Claim::plain("web", "disk-1") };
    let id = state.identify(&claim(&whole), || VolumeId(7)).expect("new").volume_id;
    state.mark_on_flash(id, Some("ab"));
    let undestaged = undestaged(id, 5);
    let claim = |evidence| Claim { undestaged: &undestaged, ..claim(evidence) };
    let accept = |adopt, discard_past_end| Acceptance { adopt, discard_past_end, ..Acceptance::default() };
    let refusal = |accept: Acceptance| {
        state
            .check(&Claim { accept: &accept, ..claim(&cut) })
            .err()
            .map(|refusal| (refusal.code(), refusal.to_string()))
    };
    let remedy = "hotset volume adopt web --discard-dirty";
    for (adopt, discard, code) in
        [(false, false, "content-unproven"), (true, false, "backing-shrank"), (false, true, "content-unproven")]
    {
        let (refused, text) = refusal(accept(adopt, discard)).expect("both have to be accepted");
        assert_eq!(refused, code);
        assert!(text.contains("has 204800 bytes and had 409600: 12288 bytes") && text.contains(remedy), "{text}");
        assert!(may_have_shrunk(refused) && !text.contains("volume resize"), "{text}");
    }
    assert_eq!(refusal(accept(true, true)), None);
    assert!(refusal(accept(false, false)).expect("unproven").1.contains("only by its device number, path or export"));
    let past_end = Evidence { has_stored_identity: true, destaged_past_end: 2, ..cut.clone() };
    let mut after_stop = state.clone();
    after_stop.mark_left_on_flash(id, 2);
    let refused = after_stop.check(&claim(&past_end)).err().expect("no block within the end proves it").to_string();
    assert!(refused.contains("destaged last with a known content lie past its end"), "{refused}");
    assert!(refused.contains(remedy) && !refused.contains("identified only"), "{refused}");
    let inside = state.check(&claim(&cut_inside)).err().expect("nothing proves the backing").to_string();
    assert!(inside.contains("has 204800 bytes and had 409600: 0 bytes") && !inside.contains(remedy), "{inside}");
    let adopted = accept(true, true);
    let admitted = state.identify(&Claim { accept: &adopted, ..claim(&cut) }, || VolumeId(8)).expect("accepted");
    assert_eq!(admitted, Admission { volume_id: id, drops_pages: true }, "the data within the end is kept");
}

#[test]
fn shrunk_backing_needs_another_proof_until_its_pages_are_dropped() {
    let mut state = State::default();
    state.begin_life(1, 2);
    let evidence = |blocks: u64, destaged_unchanged| Evidence {
        has_stored_identity: true,
        blocks_in_log: 5,
        destaged_unchanged,
        content: ContentRecord { size_bytes: blocks * 4096, ..ContentRecord::default() },
        ..Evidence::default()
    };
    let (whole, cut, unproven) = (evidence(100, 0), evidence(50, 3), evidence(50, 0));
    let claim = |evidence| Claim { store: Some("ab"), evidence: Some(evidence), ..Claim::plain("web", "disk-1") };
    let id = state.identify(&claim(&whole), || VolumeId(7)).expect("new").volume_id;
    state.mark_on_flash(id, Some("ab"));
    let undestaged = undestaged(id, 5);
    let claim = |evidence| Claim { undestaged: &undestaged, ..claim(evidence) };
    assert!(state.identify(&claim(&cut), || VolumeId(8)).expect("the ring proves the backing").drops_pages);
    // The attach failed, and an older copy took the place of the backing. The ring is not compared any more.
    let refused = state.identify(&claim(&unproven), || VolumeId(8)).expect_err("nothing proves the backing");
    assert_eq!(refused.code(), "content-unproven");
    assert!(refused.to_string().contains("still has pages from before a change of the backing"), "{refused}");
    assert!(!refused.to_string().contains("identified only"), "the identity lies in the storage: {refused}");
    state.record_pages_dropped(id, "ab");
    assert!(state.identify(&claim(&unproven), || VolumeId(8)).is_ok());
    // A drop that is recorded during a stop leaves the number of destaged blocks that the stop has recorded.
    state.mark_left_on_flash(id, 7);
    state.record_pages_dropped(id, "ab");
    assert_eq!(state.by_id(id).and_then(|record| record.content.as_ref()).map(|content| content.destaged), Some(7));
}

#[test]
fn dirty_data_of_another_lineage_is_refused_and_clean_pages_are_dropped() {
    let mut state = State::default();
    state.begin_life(1, 2);
    let evidence = |lineage: &str, blocks_in_log| Evidence {
        has_stored_identity: true,
        lineage_reason: "the image's lock was broken".to_owned(),
        blocks_in_log,
        destaged_unchanged: 31,
        content: ContentRecord { lineage: Some(lineage.to_owned()), ..ContentRecord::default() },
        ..Evidence::default()
    };
    let (own, other, later) = (evidence("a", 5), evidence("b", 5), evidence("c", 0));
    let claim = |evidence| Claim { store: Some("ab"), evidence: Some(evidence), ..Claim::plain("web", "rbd:f/1/a") };
    let id = state.identify(&claim(&own), || VolumeId(7)).expect("new").volume_id;
    state.mark_on_flash(id, Some("ab"));
    let undestaged = undestaged(id, 5);
    let dirty = |evidence| Claim { undestaged: &undestaged, ..claim(evidence) };
    assert!(!state.identify(&dirty(&own), || VolumeId(8)).expect("the same lineage").drops_pages);
    for _ in 0..2 {
        let refused = state.identify(&dirty(&other), || VolumeId(8)).expect_err("another client may have written");
        assert_eq!(refused.code(), "owner-changed");
        let text = refused.to_string();
        assert!(text.contains("lock was broken") && text.contains("adopt web --give-up 0000000000000007"), "{text}");
    }
    let accept = Acceptance { adopt: true, ..Acceptance::default() };
    let adopted = state.identify(&Claim { accept: &accept, ..dirty(&other) }, || VolumeId(8)).expect("accepted");
    assert_eq!(adopted, Admission { volume_id: id, drops_pages: true }, "the dirty data is kept");
    state.record_pages_dropped(id, "ab");
    assert!(!state.identify(&dirty(&other), || VolumeId(8)).expect("the adopted lineage").drops_pages);
    assert!(state.identify(&claim(&later), || VolumeId(8)).expect("there is no dirty data").drops_pages);
}

#[test]
fn data_that_another_host_has_destaged_is_dropped_from_the_log() {
    let mut state = State::default();
    state.begin_life(1, 2);
    state.store_mut("ab");
    let evidence = |lineage: &str| Evidence {
        has_stored_identity: true,
        blocks_in_log: 5,
        content: ContentRecord { lineage: Some(lineage.to_owned()), ..ContentRecord::default() },
        ..Evidence::default()
    };
    let (own, later) = (evidence("a"), evidence("b"));
    let claim = |evidence| Claim { store: Some("ab"), evidence: Some(evidence), ..Claim::plain("web", "rbd:f/1/a") };
    let id = state.identify(&claim(&own), || VolumeId(7)).expect("new").volume_id;
    state.mark_on_flash(id, Some("ab"));
    let undestaged = undestaged(id, 5);
    let returned = |is_destaged| Claim { undestaged: &undestaged, is_destaged, ..claim(&later) };
    let refused = state.identify(&returned(false), || VolumeId(8)).expect_err("another host may have written");
    assert_eq!(refused.code(), "owner-changed");
    // The data of a former backing of the volume is no part of what was destaged.
    let elsewhere = Claim { identity: "rbd:f/1/b", ..returned(true) };
    assert_eq!(state.clone().identify(&elsewhere, || VolumeId(8)).expect_err("it has data").code(), "backing-changed");
    let admitted = state.identify(&returned(true), || VolumeId(8)).expect("its data is complete");
    assert_eq!(admitted, Admission { volume_id: VolumeId(8), drops_pages: true });
    assert!(state.is_given_up(id), "the log drops it");
}

#[test]
fn command_that_names_data_of_another_host_accepts_nothing_else() {
    let accept = |names: &str| Acceptance { adopt: true, give_up: Some(names.to_owned()), ..Acceptance::default() };
    assert_eq!(accept("07").without(Some("07")), Acceptance::default());
    assert_eq!(accept("07,08").without(Some("07")), accept("08"));
    assert_eq!(accept("07").without(None), accept("07"));
}

#[test]
fn grown_backing_with_a_dirty_partial_block_is_refused() {
    let mut state = State::default();
    state.begin_life(1, 2);
    let evidence = |size_bytes, is_partial_block_dirty| Evidence {
        has_stored_identity: true,
        blocks_in_log: 5,
        is_partial_block_dirty,
        content: ContentRecord { size_bytes, ..ContentRecord::default() },
        ..Evidence::default()
    };
    let (short, grown, dirty) = (evidence(8_704, false), evidence(12_288, false), evidence(12_288, true));
    let claim = |evidence| Claim { store: Some("ab"), evidence: Some(evidence), ..Claim::plain("web", "disk-1") };
    let id = state.identify(&claim(&short), || VolumeId(7)).expect("new").volume_id;
    state.mark_on_flash(id, Some("ab"));
    let undestaged = undestaged(id, 5);
    let claim = |evidence| Claim { undestaged: &undestaged, ..claim(evidence) };
    let refused = state.identify(&claim(&dirty), || VolumeId(8)).expect_err("the backing grew");
    assert_eq!(refused.code(), "backing-grew");
    let admitted = state.identify(&claim(&grown), || VolumeId(8)).expect("the last block is not dirty");
    assert!(admitted.drops_pages, "a page may have content past the former end");
    state.record_pages_dropped(id, "ab");
    assert!(!state.identify(&claim(&evidence(16_384, false)), || VolumeId(8)).expect("grown").drops_pages);
    assert_eq!(content::former_partial_block(12_288, Some(8_704)), Some(engine::BlockNo(2)));
    assert_eq!(
        [(8_704, 12_288), (12_288, 8_192), (8_704, 8_704)]
            .map(|(size, before)| content::former_partial_block(size, Some(before))),
        [None; 3]
    );
}

#[test]
fn earlier_form_of_an_identity_is_recognised_and_renewed() {
    let mut state = State::default();
    let id = identified(&mut state, "web", "device:8:0", 7).expect("new");
    let aliases = ["device:8:0".to_owned()];
    let renewed = Claim { aliases: &aliases, ..Claim::plain("web", "device:naa.1") };
    assert_eq!(state.identify(&renewed, || VolumeId(8)).map(|admission| admission.volume_id), Ok(id));
    assert_eq!(identified(&mut state, "web", "device:naa.1", 9), Ok(id));
}

#[test]
fn records_of_a_pool_are_dropped_when_another_one_has_its_name() {
    let mut state = State::default();
    state.paused_pools.extend(["tank".to_owned(), "other".to_owned()]);
    state.pool_devices.insert("tank".to_owned(), BTreeSet::from(["/dev/sdx".into()]));
    // Records of an earlier version belong to the first pool that is found.
    state.claim_pool_records("tank", "aa");
    state.claim_pool_records("tank", "aa");
    assert!(state.paused_pools.contains("tank") && state.pool_devices.contains_key("tank"));
    state.claim_pool_records("tank", "bb");
    assert!(!state.paused_pools.contains("tank") && state.pool_devices.is_empty());
    assert!(state.paused_pools.contains("other"));
}
