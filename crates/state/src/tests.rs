//! What the state directory promises.

use std::io;

use engine::{CacheMode, WritePolicy};

use super::*;

fn identified(state: &mut State, name: &str, backing: &str, drawn: u64) -> Result<u64, IdentityError> {
    state.identify(name, backing, false, &[], || drawn)
}

#[test]
fn an_incarnation_stays_with_its_backing_over_restarts_and_renames() {
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
fn case_16_the_same_name_on_another_backing_is_refused_until_it_is_adopted() {
    let mut state = State::default();
    let first = identified(&mut state, "web", "disk-1", 7).expect("new");
    let refused = identified(&mut state, "web", "disk-2", 8).expect_err("another backing");
    assert_eq!(
        refused.to_string(),
        "its backing is another one than before (was disk-1, is disk-2), and the old one was not cleanly stopped; put \
         the old one back, give this one another name, or, if this is really the volume's data now, say so: hotset volume adopt web"
    );
    assert_eq!(state.volumes[0].incarnation, first, "a refusal changes nothing");
    let adopted = state.identify("web", "disk-2", true, &[], || 8).expect("said in explicit words");
    assert_ne!(adopted, first);
    assert_eq!(state.volumes.len(), 1, "the old identity is forgotten");
    assert!(identified(&mut state, "web", "disk-1", 9).is_err(), "the old disk is the stranger now");
}

#[test]
fn backing_noted_under_a_former_name_is_the_same_volume_s() {
    let mut state = State::default();
    let first = identified(&mut state, "web", "old-1", 7).expect("new");
    identified(&mut state, "other", "old-2", 8).expect("new");
    state.rename_backing(&["older-1".to_owned(), "old-1".to_owned()], "new-1");
    assert_eq!(identified(&mut state, "web", "new-1", 9), Ok(first));
    state.rename_backing(&["old-2".to_owned()], "new-1");
    let known: Vec<_> = state.volumes.iter().map(|record| record.backing_identity.as_str()).collect();
    assert_eq!(known, ["new-1", "old-2"], "a name that is taken is not given twice");
}

#[test]
fn swapped_names_are_told_by_their_backings() {
    let mut state = State::default();
    let a = identified(&mut state, "a", "disk-1", 1).expect("new");
    identified(&mut state, "b", "disk-2", 2).expect("new");
    assert!(identified(&mut state, "a", "disk-2", 3).is_err());
    let served = ["a".to_owned()];
    let taken = state.identify("c", "disk-1", false, &served, || 4).expect_err("a is in service");
    assert!(matches!(taken, IdentityError::Taken { .. }), "{taken}");
    assert_eq!(state.identify("b", "disk-1", true, &[], || 5), Ok(a), "adoption keeps the backing's own incarnation");
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
        let mut before = |step| if step == failing { Err(io::Error::other("injected")) } else { Ok(()) };
        dir.change_with(&mut before, |state| state.generation = 2).expect_err("the step fails");
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
fn another_version_and_damage_are_refused_politely() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let file = folder.path().join("state.json");
    std::fs::write(&file, r#"{"version": 2, "future": true}"#).expect("written");
    let refused = StateDir::open(folder.path()).err().expect("unknown version").to_string();
    assert!(refused.contains("format version 2"), "{refused}");
    for damage in ["", "{", "[]", r#"{"version": 1}"#, r#"{"version": 1, "generation": -1}"#] {
        std::fs::write(&file, damage).expect("written");
        let refused = StateDir::open(folder.path()).err().expect("damaged").to_string();
        assert!(refused.contains("damaged"), "{refused}");
    }
}

#[test]
fn a_change_by_command_holds_until_its_key_changes_in_the_file() {
    let mut state = State::default();
    let id = identified(&mut state, "web", "disk-1", 7).expect("new");
    let (back, through, none) = (WritePolicy::WriteBack, WritePolicy::WriteThrough, WritePolicy::None);
    state.set_override(id, POLICY, &none.to_string(), &back.to_string());
    assert_eq!(effective_policy(state.by_name("web"), back), none);
    assert_eq!(effective_policy(state.by_name("web"), through), through, "the file changed");
    state.expire_override(id, POLICY, &through.to_string());
    assert_eq!(effective_policy(state.by_name("web"), back), back, "and does not come back");
    state.set_override(id, MODE, &CacheMode::Frozen.to_string(), &CacheMode::Active.to_string());
    assert_eq!(effective_mode(state.by_name("web")), CacheMode::Frozen);
    state.set_override(id, MODE, &CacheMode::Active.to_string(), &CacheMode::Active.to_string());
    assert!(state.volumes[0].overrides.is_empty());
}

#[test]
fn the_file_reads_back_as_it_was_written() {
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
fn incarnations_are_drawn_from_the_operating_system() {
    let drawn: Vec<u64> = (0..8).map(|_| identity::draw_incarnation().expect("randomness")).collect();
    let mut unique = drawn.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), drawn.len());
}

#[test]
fn what_may_be_on_flash_is_known_until_the_volume_is_clean() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let mut dir = StateDir::open(folder.path()).expect("a new directory");
    let id = dir.change(|state| identified(state, "web", "disk-1", 7)).expect("written").expect("new");
    let without = std::fs::read_to_string(folder.path().join("state.json")).expect("it was written");
    assert!(!without.contains("dirty_on_flash"), "a version without flash reads it, too: {without}");
    dir.change(|state| state.mark_on_flash(id, Some("ab"))).expect("written");
    dir.change(|state| state.mark_parked(id)).expect("written");
    drop(dir);
    let mut dir = StateDir::open(folder.path()).expect("the same directory");
    assert_eq!(dir.state().store_of("disk-1"), Some("ab"));
    assert!(dir.state().volumes[0].clean);
    dir.change(|state| state.mark_clean(id)).expect("written");
    assert_eq!(dir.state().store_of("disk-1"), None);
}

#[test]
fn what_is_given_up_on_flash_is_another_volume_s_from_then_on() {
    let mut state = State::default();
    let id = identified(&mut state, "web", "disk-1", 7).expect("new");
    state.set_override(id, POLICY, "none", "write-back");
    state.mark_on_flash(id, Some("ab"));
    state.give_up_flash(id, 8);
    assert_eq!(identified(&mut state, "web", "disk-1", 9), Ok(8));
    assert_eq!(state.store_of("disk-1"), None);
    assert!(state.volumes[0].overrides.contains_key(POLICY), "everything else stays");
}
