//! Pools: which of the waiting task runs get free slots.

use std::collections::{BTreeMap, BTreeSet};

/// Slots of pools that an attempt takes while it is ready or running: names and numbers, in the order of the names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolNeed {
    pub pools: Vec<String>,
    /// As many slots of each.
    pub slots: Vec<i32>,
}

impl PoolNeed {
    /// The needs in a task's spec; `None`: none.
    pub fn of(pools: &BTreeMap<crate::Name, u32>) -> Option<Self> {
        let mut need = Self::default();
        for (name, slots) in pools.iter().filter(|(_, slots)| **slots > 0) {
            need.pools.push(name.as_str().to_owned());
            need.slots.push(i32::try_from(*slots).unwrap_or(i32::MAX));
        }
        (!need.pools.is_empty()).then_some(need)
    }

    fn each(&self) -> impl Iterator<Item = (&str, i64)> {
        self.pools
            .iter()
            .map(String::as_str)
            .zip(self.slots.iter().map(|slots| i64::from(*slots)))
    }
}

/// A pool and its free slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// How many slots it has.
    pub slots: i64,
    /// How many are held; more than it has, if it was made smaller.
    pub held: i64,
}

/// How many of those that wait with this same need may matter to [`admit`], at most `most`: as many as fit now, and one that
/// does not fit, which makes those behind it wait. None, if the need is more than all slots of a pool.
pub fn looked_at(pools: &BTreeMap<String, Pool>, need: &PoolNeed, most: i64) -> i64 {
    let mut fit = most;
    for (name, slots) in need.each() {
        let Some(pool) = pools.get(name) else { continue };
        if slots > pool.slots {
            return 0;
        }
        fit = fit.min((pool.slots - pool.held).max(0) / slots.max(1));
    }
    most.min(fit.saturating_add(1))
}

/// Which of those that wait, in the order in which they wait, get their slots now: their indices.
///
/// A task run that has to wait for a pool makes all later ones wait for it too, so that one that needs many slots is
/// not overtaken for ever by ones that need few. One that needs more than all slots of the pool delays nobody, and
/// waits until the pool grows. A deleted pool bounds nothing.
pub fn admit<'a>(pools: &mut BTreeMap<String, Pool>, waiting: impl Iterator<Item = &'a PoolNeed>) -> Vec<usize> {
    let mut admitted = Vec::new();
    let mut closed: BTreeSet<String> = BTreeSet::new();
    for (index, need) in waiting.enumerate() {
        let mut fits = true;
        let mut short = Vec::new();
        for (name, slots) in need.each() {
            let Some(pool) = pools.get(name) else { continue };
            if slots > pool.slots {
                fits = false;
                short.clear();
                break;
            }
            if closed.contains(name) || pool.held + slots > pool.slots {
                fits = false;
                short.push(name);
            }
        }
        closed.extend(short.into_iter().map(str::to_owned));
        if !fits {
            continue;
        }
        for (name, slots) in need.each() {
            if let Some(pool) = pools.get_mut(name) {
                pool.held += slots;
            }
        }
        admitted.push(index);
    }
    admitted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pools: &[(&str, i64, i64)], waiting: &[&[(&str, i32)]], expect: &[usize]) {
        let mut pools: BTreeMap<String, Pool> = pools
            .iter()
            .map(|&(name, slots, held)| (name.to_owned(), Pool { slots, held }))
            .collect();
        let needs: Vec<PoolNeed> = waiting
            .iter()
            .map(|need| PoolNeed {
                pools: need.iter().map(|(name, _)| (*name).to_owned()).collect(),
                slots: need.iter().map(|(_, slots)| *slots).collect(),
            })
            .collect();
        assert_eq!(admit(&mut pools, needs.iter()), expect);
    }

    #[test]
    fn slots_are_given_in_order() {
        check(&[("db", 2, 0)], &[&[("db", 1)], &[("db", 1)], &[("db", 1)]], &[0, 1]);
        check(&[("db", 2, 1)], &[&[("db", 2)], &[("db", 1)]], &[]);
        check(&[("db", 2, 3)], &[&[("db", 1)]], &[]);
        check(&[("db", 0, 0)], &[&[("db", 1)]], &[]);
    }

    #[test]
    fn who_can_never_be_served_holds_nobody_up() {
        check(&[("db", 2, 0)], &[&[("db", 3)], &[("db", 1)]], &[1]);
        check(
            &[("db", 2, 0), ("gpu", 1, 0)],
            &[&[("gpu", 2), ("db", 1)], &[("db", 2)], &[("gpu", 1)]],
            &[1, 2],
        );
    }

    #[test]
    fn as_many_are_looked_at_as_fit_and_one_more() {
        let pools = [("db", 4, 1), ("gpu", 1, 1), ("less", 1, 3)];
        let pools: BTreeMap<String, Pool> = pools
            .iter()
            .map(|&(name, slots, held)| (name.to_owned(), Pool { slots, held }))
            .collect();
        let cases: [(&[(&str, i32)], i64); 7] = [
            (&[("db", 1)], 4),
            (&[("db", 2)], 2),
            (&[("db", 5)], 0),
            (&[("db", 1), ("gpu", 1)], 1),
            (&[("db", 1), ("gpu", 2)], 0),
            (&[("less", 1)], 1),
            (&[("gone", 9)], 10),
        ];
        for (need, expect) in cases {
            let need = PoolNeed {
                pools: need.iter().map(|(name, _)| (*name).to_owned()).collect(),
                slots: need.iter().map(|(_, slots)| *slots).collect(),
            };
            assert_eq!(looked_at(&pools, &need, 10), expect, "{need:?}");
        }
    }

    #[test]
    fn several_pools_at_once() {
        let pools = [("db", 2, 0), ("gpu", 1, 1)];
        check(
            &pools,
            &[&[("db", 1), ("gpu", 1)], &[("db", 1)], &[("gpu", 1)], &[("gone", 9)]],
            &[1, 3],
        );
    }
}
