//! Each policy against a plain model of its description: queues are vectors, and every lookup is a linear search.

use super::*;
use crate::random::Random;

const DISTINCT: u64 = 400;

/// A trace that mixes hot pages, loops and scans at random.
fn accesses(seed: u64) -> PageTrace {
    let mut random = Random::new(seed, 0);
    let mut accesses = Vec::new();
    while accesses.len() < 6_000 {
        match random.below(3) {
            0 => accesses.extend((0..200).map(|_| random.below(40) as u32)),
            1 => {
                let (first, len) = (random.below(DISTINCT / 2), random.between(5, 120));
                accesses.extend((0..2).flat_map(|_| first..first + len).map(|page| page as u32));
            }
            _ => accesses.extend((0..100).map(|_| random.below(DISTINCT) as u32)),
        }
    }
    PageTrace { accesses, distinct: DISTINCT as u32 }
}

/// Removes `page`; true if it was present.
fn remove(queue: &mut Vec<u32>, page: u32) -> bool {
    let at = queue.iter().position(|other| *other == page);
    at.map(|at| queue.remove(at)).is_some()
}

/// Asserts that a policy and its model have the same outcome at every access of several traces and sizes.
fn assert_matches_model<M: FnMut(u32) -> bool>(policy: Replacement, model: impl Fn(usize, &PageTrace) -> M) {
    for (seed, slots) in [(1, 1), (2, 2), (3, 7), (4, 50), (5, 100), (6, 399)] {
        let pages = accesses(seed);
        let (mut cache, mut model) = (policy.cache(slots, &pages), model(slots, &pages));
        for (time, page) in pages.accesses.iter().enumerate() {
            let hit = cache.access(*page);
            assert_eq!(hit, model(*page), "{policy:?}, {slots} slots, access {time} of page {page}");
        }
    }
}

#[test]
fn lru_matches_its_model() {
    assert_matches_model(Replacement::Lru, |slots, _| {
        let mut list = Vec::new();
        move |page| {
            let hit = remove(&mut list, page);
            if list.len() == slots {
                list.remove(0);
            }
            list.push(page);
            hit
        }
    });
}

#[test]
fn two_q_matches_its_model() {
    assert_matches_model(Replacement::TwoQ, |slots, _| {
        let (mut new, mut ghost, mut main) = (Vec::new(), Vec::new(), Vec::new());
        move |page| {
            if new.contains(&page) {
                return true;
            }
            if remove(&mut main, page) {
                main.push(page);
                return true;
            }
            let was_ghost = remove(&mut ghost, page);
            if new.len() + main.len() == slots {
                if new.len() > slots / 4 {
                    ghost.push(new.remove(0));
                    if ghost.len() > slots / 2 {
                        ghost.remove(0);
                    }
                } else {
                    main.remove(0);
                }
            }
            if was_ghost {
                main.push(page)
            } else {
                new.push(page)
            }
            false
        }
    });
}

#[test]
fn s3_fifo_matches_its_model() {
    assert_matches_model(Replacement::S3Fifo, |slots, _| {
        let (mut small, mut main) = (Vec::<(u32, u32)>::new(), Vec::<(u32, u32)>::new());
        let mut ghost = Vec::new();
        let (main_slots, ghost_slots) = (slots - slots / 10, slots * 9 / 10);
        move |page| {
            if let Some(entry) = small.iter_mut().chain(&mut main).find(|entry| entry.0 == page) {
                entry.1 += 1;
                return true;
            }
            let was_ghost = remove(&mut ghost, page);
            while small.len() + main.len() >= slots {
                if main.len() > main_slots || small.is_empty() {
                    let (oldest, uses) = main.remove(0);
                    if uses > 0 {
                        main.push((oldest, uses.min(3) - 1));
                    }
                } else {
                    // Used pages move to main until an unused one leaves, even if main exceeds its size temporarily.
                    while !small.is_empty() {
                        let (oldest, uses) = small.remove(0);
                        if uses < 2 {
                            ghost.push(oldest);
                            break;
                        }
                        main.push((oldest, 0));
                    }
                    if ghost.len() > ghost_slots {
                        ghost.remove(0);
                    }
                }
            }
            if was_ghost {
                main.push((page, 0))
            } else {
                small.push((page, 0))
            }
            false
        }
    });
}

#[test]
fn sieve_matches_its_model() {
    assert_matches_model(Replacement::Sieve, |slots, _| {
        let (mut fifo, mut hand) = (Vec::<(u32, bool)>::new(), 0);
        move |page| {
            if let Some(entry) = fifo.iter_mut().find(|entry| entry.0 == page) {
                entry.1 = true;
                return true;
            }
            while fifo.len() == slots {
                hand %= fifo.len();
                if std::mem::take(&mut fifo[hand].1) {
                    hand += 1;
                    hand %= fifo.len();
                } else {
                    fifo.remove(hand);
                    // Past the youngest entry the hand restarts at the oldest, not at the new entry.
                    if hand == fifo.len() {
                        hand = 0;
                    }
                }
            }
            fifo.push((page, false));
            false
        }
    });
}

#[test]
fn arc_matches_its_model() {
    assert_matches_model(Replacement::Arc, |slots, _| {
        // T1, B1, T2, B2 of the paper, oldest first.
        let mut lists: [Vec<u32>; 4] = Default::default();
        let mut target = 0.0f64;
        move |page| {
            if remove(&mut lists[0], page) || remove(&mut lists[2], page) {
                lists[2].push(page);
                return true;
            }
            let [_, b1, _, b2] = lists.each_ref().map(|list| list.len() as f64);
            let (in_b1, in_b2) = (remove(&mut lists[1], page), remove(&mut lists[3], page));
            if in_b1 {
                target = (target + (b2 / b1).max(1.0)).min(slots as f64);
            } else if in_b2 {
                target = (target - (b1 / b2).max(1.0)).max(0.0);
            }
            if lists[0].len() + lists[2].len() == slots {
                let l1 = lists[0].len() + lists[1].len();
                let mut replace = true;
                if !in_b1 && !in_b2 && l1 == slots {
                    replace = !lists[1].is_empty();
                    lists[usize::from(replace)].remove(0);
                } else if !in_b1 && !in_b2 && l1 + lists[2].len() + lists[3].len() == 2 * slots {
                    lists[3].remove(0);
                }
                if replace {
                    let t1 = lists[0].len() as f64;
                    let recent = !lists[0].is_empty() && (t1 > target || (in_b2 && t1 == target));
                    let from = if recent || lists[2].is_empty() { 0 } else { 2 };
                    let evicted = lists[from].remove(0);
                    lists[from + 1].push(evicted);
                }
            }
            lists[if in_b1 || in_b2 { 2 } else { 0 }].push(page);
            false
        }
    });
}

#[test]
fn belady_matches_its_model() {
    assert_matches_model(Replacement::Belady, |slots, pages| {
        let (future, mut time, mut resident) = (pages.accesses.clone(), 0, Vec::new());
        move |page| {
            time += 1;
            if resident.contains(&page) {
                return true;
            }
            if resident.len() == slots {
                let next = |page: &u32| future[time..].iter().position(|other| other == page).unwrap_or(usize::MAX);
                // Any of the pages that are never used again may be evicted.
                let last = (0..resident.len()).max_by_key(|at| next(&resident[*at])).unwrap();
                resident.swap_remove(last);
            }
            resident.push(page);
            false
        }
    });
}

#[test]
fn no_policy_beats_belady_and_a_fitting_trace_misses_each_page_once() {
    for (name, policy) in Replacement::ALL {
        for seed in 0..4 {
            let pages = accesses(seed);
            let (outcome, best) = (policy.run(60, &pages), Replacement::Belady.run(60, &pages));
            assert!(outcome.hits <= best.hits, "{name} hits {} times, the limit is {}", outcome.hits, best.hits);
            // ThirdTouch admits a page only at its third access.
            if policy == Replacement::ThirdTouch {
                continue;
            }
            let distinct = pages.accesses.iter().collect::<std::collections::BTreeSet<_>>().len() as u64;
            let result = policy.run(2 * DISTINCT as usize, &pages);
            assert_eq!(result.accesses - result.hits, distinct, "{name} with room for everything");
        }
    }
}

#[test]
fn loop_larger_than_cache_defeats_lru_but_not_lirs_or_tinylfu() {
    let accesses: Vec<u32> = (0..50).flat_map(|_| 0..120).collect();
    let pages = PageTrace { accesses, distinct: 120 };
    assert_eq!(Replacement::Lru.run(100, &pages).hits, 0);
    for policy in [Replacement::Lirs, Replacement::WTinyLfu] {
        assert!(policy.run(100, &pages).miss_ratio() < 0.4, "{policy:?}");
    }
}

#[test]
fn policies_are_found_by_name() {
    assert_eq!(Replacement::named("2q"), Some(Replacement::TwoQ));
    assert_eq!(Replacement::named("default"), Some(Replacement::Default));
    assert_eq!(Replacement::named("random"), None);
}
